"""What an answer may hold that wants to be more than text. ``PORT`` is where it would call."""

from __future__ import annotations

PORT = 9  # of this machine; nobody listens there

TEXTS = tuple(
    text.replace("PORT", str(PORT))
    for text in (
        "<script>window.hacked = 1; fetch('http://127.0.0.1:PORT/script')</script>",
        "<img src=http://127.0.0.1:PORT/image onerror=window.hacked=2> "
        "<svg onload=window.hacked=3><style>*{background:url(http://127.0.0.1:PORT/style)}</style>",
        "[press](javascript:window.hacked=4) [here](JaVaScRiPt:alert(5)) "
        "[or](data:text/html,<script>alert(6)</script>) <javascript:alert(7)>",
        "![pixel](http://127.0.0.1:PORT/pixel.png) ![inline](data:image/png;base64,AAAA)",
        "{{ 7 * 7 }} {% for x in range(9) %}{{ x }}{% endfor %} ${7*7} #{7*7} <%= 7*7 %>",
        "</script><script>window.hacked = 8</script> </title></style></textarea><!-- <![CDATA[",
        "approved \u202edevorppa ton\u202c \u2066isolated\u2069 end",
        "nul \x00 bell \x07 escape \x1b[31m delete \x7f",
        '"><iframe src=http://127.0.0.1:PORT/frame></iframe><a href="x" onclick="window.hacked=9">',
        "<base href=http://127.0.0.1:PORT/>"
        "<meta http-equiv=refresh content=0;url=http://127.0.0.1:PORT/>"
        "<link rel=stylesheet href=http://127.0.0.1:PORT/sheet>",
        "| a | b |\n|:--|--:|\n| <b>1</b> | 2 |\n\n"
        "```html onload=x\n</code></pre><script>9</script>\n```",
        "x" * 200_000,
        "\u05e9\u05dc\u05d5\u05dd ) 1 ( \u0645\u0631\u062d\u0628\u0627 & < > \" ' `",
    )
)
