"""How a page looks, in the reader's light or dark."""

NUM_COLOURS = 8
"""Classes ``c0`` to ``c7``, told apart by readers with any colour vision (after Okabe and Ito)."""

CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d5dae0;
  --paper: #ffffff; --raised: #f5f7f9;
  --c0: #6b7480; --c1: #0072b2; --c2: #d55e00; --c3: #009e73;
  --c4: #b0609a; --c5: #a57c00; --c6: #3f9fd0; --c7: #5b4fc7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4af; --line: #363d46;
  --paper: #14181d; --raised: #1d232a;
  --c0: #8d97a3; --c1: #4aa8e0; --c2: #f0874a; --c3: #35c69b;
  --c4: #d58cc0; --c5: #d9ae33; --c6: #7cc4ea; --c7: #9c92f2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .25rem 0; } .soft, figcaption { color: var(--soft); }
.warning { border-left: 4px solid var(--c2); padding-left: .75rem; margin: .75rem 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--raised); padding: .6rem .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; border-radius: 6px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13.5px; }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; } thead th { color: var(--soft); }
thead th:nth-child(n+3) { text-align: right; } tbody tr.group { border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { margin-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif;
  stroke: var(--paper); stroke-width: 3px; paint-order: stroke; }
svg text.soft { fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .mark { stroke: var(--ink); stroke-width: 1.5; }
svg .interval { stroke: var(--ink); stroke-width: 1.25; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: 13.5px;
  position: sticky; top: 0; padding: .4rem 0; background: var(--paper); }
.legend span::before { content: ""; display: inline-block; width: .8em; height: .8em;
  margin-right: .4em; border-radius: 2px; background: currentColor; }
.legend b { color: var(--ink); font-weight: 400; }
""" + "\n".join(
    f".c{place} {{ fill: var(--c{place}); color: var(--c{place}); stroke: none; }}"
    f" line.c{place} {{ stroke: var(--c{place}); }}"
    for place in range(NUM_COLOURS)
)
