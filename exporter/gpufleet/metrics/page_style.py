"""How the landing page looks, and what a browser may do with it: nothing but show it.

Apart from ``page``, so that a server can send the policy without loading what makes the page.
"""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--bg:#f4f6f8;--card:#fff;--text:#12171e;--muted:#586273;--line:#e1e5ea;--track:#e7ebf0;
--fill:#0d8074;--ok:#12703a;--okbg:#e2f5e8;--warn:#8a4b00;--warnbg:#fff0d6;--warnfill:#d98a12;--bad:#a81c1c;
--badbg:#fde4e4;--badfill:#d93636;--note:#2b3f8f;--notebg:#e6ebff;--shadow:0 1px 2px #1018280d,0 1px 8px #1018280a}
@media (prefers-color-scheme:dark){:root{--bg:#0c0f14;--card:#141920;--text:#e7ebf1;--muted:#96a1b1;--line:#252c37;
--track:#252c37;--fill:#2cc5b3;--ok:#6ee79a;--okbg:#10301d;--warn:#ffc46b;--warnbg:#382605;--warnfill:#eda53a;
--bad:#ff9a9a;--badbg:#3d1415;--badfill:#ef5b5b;--note:#b3c2ff;--notebg:#1b2450;--shadow:none}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);font:14px/1.4 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums}
main,header,footer{max-width:1560px;margin:0 auto;padding:0 20px}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 16px;padding-top:18px}
h1{font-size:22px;line-height:1.2;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
header p{margin:0;color:var(--muted)}
nav{margin-left:auto;display:flex;flex-wrap:wrap;gap:4px 16px}
a{color:var(--fill);text-underline-offset:3px}
a:focus-visible{outline:2px solid var(--fill);outline-offset:3px;border-radius:3px}
.about{display:flex;flex-wrap:wrap;gap:2px 18px;margin:6px 0 14px;padding:0;list-style:none;color:var(--muted)}
.about b{color:var(--text);font-weight:600}
.banner{margin:0 0 10px;padding:10px 14px;border-radius:10px;border-left:4px solid;overflow-wrap:anywhere}
.banner b{margin-right:6px}
.banner.note{background:var(--notebg);color:var(--note)}
.banner.warn{background:var(--warnbg);color:var(--warn)}
.banner.bad{background:var(--badbg);color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(176px,1fr));gap:10px;margin:0 0 14px;padding:0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:11px 14px 13px;
box-shadow:var(--shadow)}
.tile dt{color:var(--muted);font-size:12px}
.tile dd{margin:0}
.tile .big{font-size:23px;font-weight:650;letter-spacing:-.02em}
.tile .of{color:var(--muted);font-size:13px;margin-left:6px}
.tile .bar{margin-top:7px}
.frame{background:var(--card);border:1px solid var(--line);border-radius:12px;box-shadow:var(--shadow);
overflow-x:auto}
table{border-collapse:collapse;width:100%}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
thead th{font-size:12px;font-weight:600;color:var(--muted);text-align:left;padding:9px 9px;white-space:nowrap;
border-bottom:1px solid var(--line)}
tbody th,td{padding:9px 9px;text-align:left;vertical-align:top;font-weight:400}
tbody tr+tr>*{border-top:1px solid var(--line)}
tbody tr.slice>*{border-top:0;padding-top:2px;padding-bottom:7px}
thead th:first-child,tbody th{padding-left:16px}
.who{display:flex;gap:11px}
.number{font-size:20px;font-weight:650;line-height:1.15;min-width:1.3em}
.name{display:block;font-weight:600;white-space:nowrap}
small{display:block;color:var(--muted);font-size:12px;white-space:nowrap}
.slice .who{padding-left:calc(1.3*20px + 11px)}
.slice .name{font-weight:500}
.badge,.chip{display:inline-block;border-radius:99px;padding:1px 9px;font-size:12px;font-weight:600;white-space:nowrap;
background:var(--track);color:var(--muted)}
.badge::before{content:"";display:inline-block;width:7px;height:7px;border-radius:50%;background:currentColor;
margin-right:6px;vertical-align:1px}
.badge.ok{background:var(--okbg);color:var(--ok)}
.chip{border-radius:10px;white-space:normal}
.chip.warn,.badge.warn{background:var(--warnbg);color:var(--warn)}
.chip.bad,.badge.bad{background:var(--badbg);color:var(--bad)}
.chips{display:flex;flex-wrap:wrap;gap:4px;margin:0;padding:0;list-style:none;min-width:140px}
.meter{min-width:92px}
.value{white-space:nowrap}
.value i{font-style:normal;color:var(--muted);font-size:12px}
.bar{display:block;width:100%;height:6px;margin:3px 0 2px;border-radius:3px}
.bar .track{fill:var(--track)}
.bar .fill{fill:var(--fill)}
.bar.warn .fill{fill:var(--warnfill)}
.bar.bad .fill{fill:var(--badfill)}
.held .name{max-width:26ch;overflow:hidden;text-overflow:ellipsis}
.held small{max-width:30ch;overflow:hidden;text-overflow:ellipsis}
.nobody{color:var(--muted)}
.absent{color:var(--muted)}
.reason{color:var(--bad);overflow-wrap:anywhere}
.empty{padding:34px 20px;text-align:center;color:var(--muted)}
.sources{display:flex;flex-wrap:wrap;gap:4px 18px;margin:12px 0 0;padding:0;list-style:none;color:var(--muted);
font-size:12px}
footer{display:flex;flex-wrap:wrap;gap:4px 18px;padding-top:14px;padding-bottom:26px;color:var(--muted);font-size:12px}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
@media (max-width:1240px){
main,header,footer{padding-left:12px;padding-right:12px}
nav{margin-left:0}
.frame{background:none;border:0;box-shadow:none;border-radius:0;overflow:visible}
table,tbody,tr,th,td{display:block}
thead{display:none}
tbody tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(118px,1fr));gap:2px 14px;background:var(--card);
border:1px solid var(--line);border-radius:12px;padding:12px 14px;margin-bottom:10px}
tbody tr.slice{margin-top:-20px;padding-top:14px;border-top:0;border-radius:0 0 12px 12px}
tbody tr+tr>*{border:0}
tbody th,td,tbody tr.slice>*{padding:3px 0}
tbody th,td.wide,td.notes{grid-column:1/-1}
td[data-label]::before{content:attr(data-label);display:block;color:var(--muted);font-size:12px}
td.state::before,td.notes::before,td.wide::before,td.none{display:none}
.slice .who{padding-left:0}
.who span{min-width:0}
.name,small{white-space:normal;overflow-wrap:anywhere}
}
@media (prefers-reduced-motion:no-preference){.badge.ok::before{animation:breathe 3s ease-in-out infinite}}
@keyframes breathe{50%{opacity:.45}}
@media print{body{background:none}.tile,.frame{box-shadow:none}nav,footer{display:none}}
"""

STYLE_HASH = "sha256-BV9NOcOZSRGCj8wlgklfujON+dRLIC1SRtYlj1NGvlg="
"""Of STYLE, so that the browser takes this style and no other; a test says what it must be."""

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src '{STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16'"
    " rx='4' fill='%230d8074'/%3E%3Cpath d='M4 12V8m4 4V4m4 8V6' stroke='%23fff' stroke-width='2.2'"
    " stroke-linecap='round'/%3E%3C/svg%3E"
)
