"""Pure: the style sheet of the report. Colours are distinguishable with any colour vision, in light and in dark mode."""

STYLE = """
:root { color-scheme: light dark; --paper: #f6f6f3; --card: #ffffff; --ink: #1f2328; --soft: #5c6570; --grid: #e3e5e8;
  --c1: #2563b8; --c2: #d97a16; --c3: #2a8f6d; --c4: #c3372c; --c5: #8459b8; --c6: #3f9fb5; --c7: #9aa1a9; --c8: #b59410; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1d2127; --ink: #e6e8eb; --soft: #9aa4af; --grid: #323840;
  --c1: #6ea3f2; --c2: #f0a04b; --c3: #57c29a; --c4: #f2746a; --c5: #b493e6; --c6: #66c5d8; --c7: #7b838d; --c8: #dcc04f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { margin: 0; font-size: 24px; overflow-wrap: anywhere; }
h2 { margin: 0; font-size: 16px; }
header p, .about, .axis-name { color: var(--soft); margin: 2px 0 0; font-size: 13px; overflow-wrap: anywhere; }
.axis-name { text-align: center; }
.notice { margin: 10px 0 0; padding: 8px 12px; border-left: 3px solid var(--c1); background: var(--card);
  overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 14px 16px; margin-top: 16px;
  overflow-x: auto; direction: rtl; }
section > * { direction: ltr; }
section > svg, section > div { margin-top: 10px; }
section > p { margin: 8px 0 0; }
section > .axis-name { margin-top: 0; }
svg { display: block; width: 100%; min-width: 480px; height: auto; font: 11px system-ui, sans-serif; }
.tiles { list-style: none; display: grid; grid-template-columns: repeat(auto-fit, minmax(110px, 1fr)); gap: 10px; padding: 0;
  margin: 16px 0 0; }
.tiles li { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 8px 12px; }
.tiles span, .tiles small { display: block; color: var(--soft); font-size: 12px; min-height: 1.4em; }
.tiles b { font-size: 19px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: var(--soft); font-weight: 600; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
td { white-space: nowrap; }
td.number { font-variant-numeric: tabular-nums; }
td.wide { white-space: normal; min-width: 160px; overflow-wrap: anywhere; }
section li, code { overflow-wrap: anywhere; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 6px 0 0; padding: 0; font-size: 13px; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
.tick { fill: var(--soft); }
.pieces { shape-rendering: crispEdges; }
.grid { stroke: var(--grid); }
.axis, .mark { stroke: var(--soft); }
.lane { fill: var(--grid); fill-opacity: 0.5; }
.area { fill: var(--c1); fill-opacity: 0.18; }
.area, .line { pointer-events: none; }
.paused { fill: var(--c8); fill-opacity: 0.25; stroke: var(--c8); stroke-opacity: 0.5; shape-rendering: crispEdges; }
.key.paused { background: var(--c8); opacity: 0.5; }
.line { fill: none; stroke: var(--c1); stroke-width: 1.5; stroke-linejoin: round; }
.dot { fill: var(--c1); }
.hover { fill: transparent; }
.hover:hover { fill: var(--soft); fill-opacity: 0.2; }
.s1 { fill: var(--c1); background: var(--c1); } .s2 { fill: var(--c2); background: var(--c2); }
.s3 { fill: var(--c3); background: var(--c3); } .s4 { fill: var(--c4); background: var(--c4); }
.s5 { fill: var(--c5); background: var(--c5); } .s6 { fill: var(--c6); background: var(--c6); }
.s7 { fill: var(--c7); background: var(--c7); } .s8 { fill: var(--c8); background: var(--c8); }
@media print { section { break-inside: avoid; } }
"""
