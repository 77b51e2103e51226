"""The look of the HTML report: readable on a laptop and on a phone, in light and dark, without anything external."""

CSS = """
:root { color-scheme: light dark; --ink: #1d2430; --faint: #5b6675; --line: #d5dae1; --head: #f3f5f8; --page: #fff;
  --flag: #b42318; --flagged: #fdecea; --gap: #8a6d00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --faint: #a3adba; --line: #39424e; --head: #1f262f;
  --page: #151a21; --flag: #ff8a7a; --flagged: #3a1f1c; --gap: #e0bd4f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 90rem; color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .2rem 0 1rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
p { margin: .4rem 0; max-width: 52rem; }
.caption, .note, .legend { color: var(--faint); font-size: .9rem; }
nav { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1rem 0; }
nav a { padding: .25rem .7rem; border: 1px solid var(--line); border-radius: 1rem; color: inherit;
  text-decoration: none; font-size: .9rem; }
nav a:hover, nav a:focus { background: var(--head); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .6rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { background: var(--head); text-align: center; border-left: 1px solid var(--line); }
th[scope=row], thead th:first-child[rowspan] { text-align: left; position: sticky; left: 0; background: var(--head);
  border-left: 0; }
.group { text-align: left; color: var(--faint); }
tbody:not(:last-child) { border-bottom: 2px solid var(--line); }
td small { display: block; color: var(--faint); font-size: .78rem; line-height: 1.35; }
td small.seeds a { color: inherit; }
figure { margin: .6rem 0; max-width: 62rem; } figure img { width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: .85rem; }
#claims th[scope=row] { white-space: normal; min-width: 16rem; }
.notable { background: var(--flagged); }
.flag { color: var(--flag); font-weight: 600; }
.missing { color: var(--gap); font-style: italic; }
.warnings { border-left: 4px solid var(--gap); padding: .4rem 0 .4rem 1.6rem; margin: 1rem 0; }
@media (max-width: 40rem) { body { padding: .7rem; font-size: 15px; } table { font-size: .8rem; }
  th, td { padding: .35rem .45rem; } th[scope=row] { white-space: normal; min-width: 5.5rem; } }
"""
