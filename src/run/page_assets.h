// The style sheet and script of the pages made by program_page.cpp.
#pragma once

namespace tilewright::run {

inline constexpr const char* kPageStyle = R"css(
:root { color-scheme: light dark; --back: #fff; --text: #1d2129; --soft: #6b7280; --edge: #d9dde3;
  --bar: #f5f6f8; --tint: 93%; --strong: 78%; --sat: 70%; }
@media (prefers-color-scheme: dark) { :root { --back: #15181d; --text: #dfe3ea; --soft: #8d96a5;
  --edge: #2d333c; --bar: #1c2027; --tint: 17%; --strong: 32%; --sat: 45%; } }
* { box-sizing: border-box; }
body { margin: 0; height: 100vh; display: flex; flex-direction: column; background: var(--back);
  color: var(--text); font: 14px/1.4 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .3em 1.2em; align-items: baseline;
  padding: .6em 1em; background: var(--bar); border-bottom: 1px solid var(--edge); }
h1 { font-size: 1.1em; margin: 0; }
header span { color: var(--soft); }
nav { margin-left: auto; display: flex; flex-wrap: wrap; gap: .2em .9em; }
nav label { cursor: pointer; white-space: nowrap; }
nav input { margin: 0 .3em 0 0; vertical-align: -1px; }
details { padding: .4em 1em; border-bottom: 1px solid var(--edge); }
summary { cursor: pointer; }
dl { margin: .4em 0; max-height: 30vh; overflow: auto; }
dt { font-weight: 600; margin-top: .4em; }
dd { margin: .1em 0 .1em 1.2em; }
main { flex: 1; min-height: 0; display: flex; overflow-x: auto; }
.pane { flex: 1 1 0; min-width: 22em; display: flex; flex-direction: column;
  border-right: 1px solid var(--edge); }
.pane[hidden] { display: none; }
h2 { margin: 0; padding: .35em .8em; font-size: .85em; font-weight: 600; color: var(--soft);
  border-bottom: 1px solid var(--edge); background: var(--bar); }
.code { flex: 1; overflow: auto; position: relative; padding: .3em 0;
  font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; tab-size: 4; }
.l { white-space: pre; min-width: max-content; padding-right: 1em; min-height: 1.5em; }
.l i { display: inline-block; width: 3.2em; padding-right: .9em; text-align: right;
  font-style: normal; color: var(--soft); user-select: none; }
.pane[data-name=PTX] i, .pane[data-name=SASS] i, .pane[data-name=Bytecode] i { width: .8em; }
.l[data-k] { background: hsl(var(--h) var(--sat) var(--tint)); cursor: pointer; }
.l.on { background: hsl(var(--h) var(--sat) var(--strong)); }
.l.pin { outline: 1px solid hsl(var(--h) 60% 50%); outline-offset: -1px; }
.file { padding: .2em .9em; color: var(--soft); font-weight: 600; white-space: pre; }
.missing { font: 14px/1.5 system-ui, sans-serif; margin: .8em 1em; color: var(--soft);
  white-space: pre-wrap; }
)css";

inline constexpr const char* kPageScript = R"js(
const lines = [...document.querySelectorAll('.l[data-k]')];
const byKey = new Map();
for (const line of lines) {
  line.keys = line.dataset.k.split(' ');
  for (const key of line.keys) byKey.set(key, [...(byKey.get(key) || []), line]);
}
// Lines that share a key with `line`; a line of the source or of strips has several.
const relatives = line => new Set(line.keys.flatMap(key => byKey.get(key)));
const mark = (set, name) => {
  document.querySelectorAll('.l.' + name).forEach(line => line.classList.remove(name));
  set.forEach(line => line.classList.add(name));
};
for (const line of lines) {
  line.onmouseenter = () => mark(relatives(line), 'on');
  line.onmouseleave = () => mark([], 'on');
  line.onclick = () => {
    const related = relatives(line);
    mark(line.classList.contains('pin') && pinned === line ? [] : related, 'pin');
    pinned = line.classList.contains('pin') ? line : null;
    document.querySelectorAll('.pane').forEach(pane => {
      const code = pane.querySelector('.code');
      if (code.contains(line)) return;
      const first = [...related].find(one => code.contains(one));
      if (first) code.scrollTop = first.offsetTop - code.clientHeight / 3;
    });
  };
}
let pinned = null;
const show = () => document.querySelectorAll('nav input').forEach(box => {
  document.querySelector(`.pane[data-name="${box.value}"]`).hidden = !box.checked;
});
document.querySelectorAll('nav input').forEach(box => { box.onchange = show; });
show();
const first = location.hash.slice(1);
if (first && byKey.has(first)) byKey.get(first)[0].click();
)js";

}  // namespace tilewright::run
