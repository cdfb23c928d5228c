"""Programs run equation by equation, on numbers of a dtype or on balls; knows no other room."""
