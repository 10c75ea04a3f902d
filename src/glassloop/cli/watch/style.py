"""The style sheet of `watch`."""

STYLE = """
Screen { background: $background; }
#title { height: 1; padding: 0 1; color: $text-muted; text-style: bold; }
#title, #keys { text-wrap: nowrap; text-overflow: ellipsis; }
#text, #bars, #places, #why, #tree {
    border: round $surface-lighten-2;
    border-title-color: $text-muted;
    padding: 0 1;
}
#text { height: 1fr; min-height: 5; }
#scrubber { height: 1; padding: 0 2; }
#middle { height: 13; }
#bars, #places { width: 1fr; }
#why { width: 1fr; }
#tree { height: 5; }
.-low #middle { height: 10; }
.-low #tree { height: 4; }
#edit { height: 3; border: round $accent; }
#keys { height: 1; color: $text-muted; }
Help { align: center middle; }
#help { width: auto; max-width: 78; height: auto; border: round $accent; padding: 1 2; background: $surface; }
"""
