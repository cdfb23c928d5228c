def differences_markdown():
    return ""
