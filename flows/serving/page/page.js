import * as api from "./api.js";
import { area, heat, source, spotlight, values } from "./maps.js";

const by = (id) => document.getElementById(id);
const stage = by("stage");
const ENDS = ["before", "after"];
const LAYERS = ["change", "mask", "look"];
const files = { before: null, after: null };
let answer = null; // of the last request
let maps = null; // its layers: {before: [per word], after: [per word]}
let asking = null; // an AbortController
let pinned = null; // the word whose look stays
let playing = 0;
let drafting = 0;

const view = (end) => stage.querySelector(`[data-end="${end}"]`);
const layer = (end, kind) => view(end).querySelector(`canvas.${kind}`);
const element = (tag, attributes = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...inside);
  return made;
};
const percent = (share) => {
  if (share === null) return "";
  return share > 0.999 ? "> 99.9 %" : share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
};
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).split(",").map(Number);

// ---------------------------------------------------------------- pictures in

for (const end of ENDS) {
  const frame = view(end).querySelector(".frame");
  for (const kind of LAYERS) frame.append(element("canvas", { className: kind, ariaHidden: "true" }));
  by(end).addEventListener("change", (event) => {
    if (event.target.files[0]) take({ [end]: event.target.files[0] });
    event.target.value = "";
  });
  frame.addEventListener("dragover", (event) => { event.preventDefault(); frame.classList.add("over"); });
  frame.addEventListener("dragleave", () => frame.classList.remove("over"));
  frame.addEventListener("drop", (event) => {
    event.preventDefault();
    frame.classList.remove("over");
    const dropped = [...event.dataTransfer.files];
    if (dropped.length > 1) take({ before: dropped[0], after: dropped[1] });
    else if (dropped.length) take({ [end]: dropped[0] });
  });
}
for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());

async function take(given, truth = "") {
  forget();
  if (!truth) mark(null);
  by("truth").textContent = truth;
  Object.assign(files, given);
  await Promise.all(Object.entries(given).map(([end, file]) => place(end, file)));
  const whole = files.before && files.after;
  by("swap").hidden = !whole;
  if (whole && Object.entries(given).every(([end, file]) => files[end] === file)) await describe();
}

async function place(end, file) {
  const shown = await preview(end, file);
  if (shown || file.type.startsWith("image/") || files[end] !== file) return;
  files[end] = null;
  complain(new api.Complaint({
    what: `${file.name} is no picture`, where: end, expected: "a PNG, JPEG, GIF, WEBP, BMP or TIFF file",
    do: "choose another file",
  }));
}

async function preview(end, file) {
  const picture = view(end).querySelector("img");
  const invite = view(end).querySelector(".invite");
  if (picture.src) URL.revokeObjectURL(picture.src);
  picture.src = URL.createObjectURL(file);
  const shown = await picture.decode().then(() => true, () => false);
  picture.hidden = !shown;
  picture.alt = shown ? `the picture ${end}` : "";
  invite.hidden = shown;
  const ratio = shown ? picture.naturalWidth / picture.naturalHeight : 1;
  for (const each of [end, "between"]) view(each).querySelector(".frame").style.setProperty("--ratio", ratio);
  invite.querySelector("span").textContent = shown ? "" : `no preview of ${file.name}`;
  return shown;
}

by("swap").addEventListener("click", () => {
  take({ before: files.after, after: files.before });
});

// ---------------------------------------------------------------- question and answer

async function describe() {
  asking?.abort();
  const mine = (asking = new AbortController());
  forget();
  document.body.classList.add("busy");
  by("status").textContent = "The model is looking.";
  const start = performance.now();
  try {
    const said = await api.explain(files.before, files.after, mine.signal);
    if (mine !== asking) return;
    await show(said, performance.now() - start);
  } catch (error) {
    if (mine === asking && error.name !== "AbortError") complain(error);
  } finally {
    if (mine === asking) document.body.classList.remove("busy");
  }
}

function forget() {
  answer = maps = pinned = null;
  stop();
  stage.classList.remove("looking", "masked", "has-frames");
  clearInterval(drafting);
  for (const id of ["answer", "complaint", "procedure", "token-form", "drafts"]) by(id).hidden = true;
  for (const end of ENDS) for (const kind of LAYERS) layer(end, kind).width = 0;
  by("frame").hidden = true;
  by("between-invite").hidden = false;
  by("frame-name").textContent = "In between";
}

function complain(error) {
  const box = by("complaint");
  const said = error instanceof api.Complaint ? error : new api.Complaint({
    what: `the page failed: ${error.message}`, where: "this page", expected: "an answer to show", do: "reload it",
  });
  box.replaceChildren(
    element("b", { textContent: said.what }),
    element("span", { textContent: `where: ${said.where}` }),
    element("span", { textContent: `expected: ${said.expected}` }),
    element("span", { textContent: `do: ${said.advice}` }),
  );
  box.hidden = false;
  by("status").textContent = "";
  by("token-form").hidden = said.status !== 401;
  if (said.status === 401) by("token").focus();
}

by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.setToken(by("token").value);
  showModel();
  if (files.before && files.after) describe();
  else forget();
});

async function show(said, roundTrip) {
  const [caption] = said.captions;
  const why = caption.explanation;
  answer = caption;
  by("sentence").replaceChildren(...caption.words.flatMap((word, place) => [wordButton(word, place, caption), " "]));
  if (!caption.words.length) by("sentence").textContent = caption.text || "(no words)";
  by("hint").hidden = !why?.attention_before;
  facts(caption, said, roundTrip);
  by("layers").hidden = !why?.change_map && !caption.change_mask;
  by("change-choice").hidden = by("strength-choice").hidden = !why?.change_map;
  by("mask-choice").hidden = !caption.change_mask;
  by("truth").hidden = !by("truth").textContent;
  by("answer").hidden = false;
  by("status").textContent = `Answer: ${caption.text}`;
  tellModel(said.model);
  if (why) await showReasons(why, caption);
  else by("between-invite").firstElementChild.textContent = "this model tells no reasons";
  if (caption.change_mask) {
    by("show-mask").checked = true;
    const mask = await values(caption.change_mask);
    for (const end of ENDS) area(layer(end, "mask"), mask, themed("--mask"));
  }
  applyLayers();
}

function wordButton(word, place, caption) {
  const sure = caption.word_probabilities[place] ?? 1;
  const button = element("button", {
    type: "button", className: "word", textContent: word, title: `${percent(sure)} sure of this word`, ariaPressed: "false",
  });
  button.style.setProperty("--sure", (0.1 + 0.9 * sure).toFixed(3));
  button.addEventListener("pointerenter", () => look(place));
  button.addEventListener("pointerleave", () => look(pinned));
  button.addEventListener("focus", () => look(place));
  button.addEventListener("blur", () => look(pinned));
  button.addEventListener("click", () => pin(pinned === place ? null : place));
  return button;
}

function facts(caption, said, roundTrip) {
  const spent = said.milliseconds;
  const line = caption.reasoning;
  const rows = [
    ["kind of change", line && line.change],
    ["object", line && line.object],
    ["where", line && line.where],
    ["something changed", percent(caption.change_probability)],
    ["this sentence", percent(caption.probability)],
    ["the model took", `${spent.model.toFixed(0)} ms`],
    ["pictures and queue", `${(spent.reading + spent.waiting).toFixed(0)} ms`],
    ["there and back", `${roundTrip.toFixed(0)} ms`],
  ];
  by("facts").replaceChildren(...rows.filter(([, value]) => value).map(([name, value]) =>
    element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
}

// ---------------------------------------------------------------- reasons

async function showReasons(why, caption) {
  const looks = (end) => Promise.all((why[`attention_${end}`] ?? []).map(values));
  const [before, after, change] = await Promise.all([
    looks("before"), looks("after"), why.change_map && values(why.change_map),
  ]);
  if (answer !== caption) return;
  if (before.length) maps = { before, after, frames: why.attention_frames };
  if (change) for (const end of ENDS) heat(layer(end, "change"), change, themed("--change"));
  showDrafts(why.drafts);
  const last = why.frames.length - 1;
  const imagines = last > 1;
  by("between-invite").firstElementChild.textContent = imagines ? "" : "this model imagines nothing in between";
  by("procedure").hidden = !imagines;
  if (!imagines) return;
  stage.classList.add("has-frames");
  by("strip").replaceChildren(...why.frames.map((frame, place) => {
    const button = element("button", { type: "button", ariaLabel: `Show ${called(place, last)}` },
      element("img", { src: source(frame), alt: "" }));
    button.addEventListener("click", () => { stop(); turn(place); });
    return element("li", {}, button, element("i"), called(place, last));
  }));
  Object.assign(by("time"), { max: last });
  turn(1);
}

// The sentence at every step of its sampling, one after another; moving the slider stops it.
function showDrafts(drafts) {
  by("drafts").hidden = !drafts.length;
  if (!drafts.length) return;
  const turnTo = (place) => {
    by("draft").textContent = drafts[place].text || "(no words)";
    by("draft-step").value = place;
    by("draft-number").textContent = `step ${place + 1} of ${drafts.length}, ${percent(drafts[place].probability)}`;
  };
  Object.assign(by("draft-step"), { max: drafts.length - 1, oninput: () => {
    clearInterval(drafting);
    turnTo(Number(by("draft-step").value));
  } });
  clearInterval(drafting);
  turnTo(0);
  drafting = setInterval(() => {
    const next = Number(by("draft-step").value) + 1;
    if (next < drafts.length) turnTo(next);
    else clearInterval(drafting);
  }, 400);
}

const called = (place, last) => (place === 0 ? "before" : place === last ? "after" : `imagined ${place}`);

function turn(place) {
  const frames = answer.explanation.frames;
  const name = called(place, frames.length - 1);
  Object.assign(by("time"), { value: place, ariaValueText: name });
  Object.assign(by("frame"), { src: source(frames[place]), alt: `${name}, as the model has it`, hidden: false });
  by("between-invite").hidden = true;
  by("frame-name").textContent = name[0].toUpperCase() + name.slice(1);
  [...by("strip").querySelectorAll("button")].forEach((button, each) => { button.ariaCurrent = String(each === place); });
}

by("time").addEventListener("input", (event) => { stop(); turn(Number(event.target.value)); });
by("play").addEventListener("click", () => (playing ? stop() : play()));

function play() {
  by("play").ariaPressed = "true";
  playing = setInterval(() => {
    const frames = answer.explanation.frames.length;
    turn((Number(by("time").value) + 1) % frames);
  }, 700);
}

function stop() {
  clearInterval(playing);
  playing = 0;
  by("play").ariaPressed = "false";
}

function look(place) {
  const seen = maps && place !== null;
  stage.classList.toggle("looking", Boolean(seen));
  if (seen) for (const end of ENDS) spotlight(layer(end, "look"), maps[end][place]);
  [...by("strip").querySelectorAll("i")].forEach((bar, frame) => {
    bar.style.setProperty("--share", seen && maps.frames ? maps.frames[place][frame] : 0);
  });
}

function pin(place) {
  pinned = place;
  [...by("sentence").querySelectorAll(".word")].forEach((button, each) => { button.ariaPressed = String(each === place); });
  look(place);
}
addEventListener("keydown", (event) => { if (event.key === "Escape" && pinned !== null) pin(null); });

// ---------------------------------------------------------------- layers

function applyLayers() {
  by("strength").disabled = !by("show-change").checked;
  stage.style.setProperty("--strength", by("show-change").checked ? by("strength").value / 100 : 0);
  stage.classList.toggle("masked", by("show-mask").checked);
}
for (const id of ["show-change", "strength", "show-mask"]) by(id).addEventListener("input", applyLayers);

// ---------------------------------------------------------------- examples and model

function mark(chosen) {
  by("examples").querySelectorAll("button").forEach((button) => { button.ariaPressed = String(button === chosen); });
}

async function showExamples() {
  const known = await api.examples().catch(() => []);
  by("examples").replaceChildren(...known.map((example) => {
    const path = (end) => `page/examples/${example[end]}`;
    const pictures = ENDS.map((end) => element("img", { src: path(end), alt: "", loading: "lazy" }));
    const button = element("button", { type: "button", ariaPressed: "false" },
      element("span", {}, ...pictures), element("b", { textContent: example.title }));
    button.addEventListener("click", () => choose(button, example, path));
    return element("li", {}, button);
  }));
}

async function choose(button, example, path) {
  mark(button);
  const truth = `What was drawn: ${example.caption}.`;
  try {
    const [before, after] = await Promise.all(ENDS.map((end) => api.file(path(end))));
    if (button.ariaPressed !== "true") return; // another one was chosen meanwhile
    stage.scrollIntoView({ block: "nearest" });
    await take({ before, after }, truth);
  } catch (error) {
    complain(error);
  }
}

function tellModel(model) {
  const version = model.version === null ? model.digest.slice(0, 8) : `version ${model.version}`;
  const name = `${model.captioner}, ${version}`;
  const told = model.card ? element("a", { href: "v1/card", textContent: name }) : name;
  if (model.card) told.addEventListener("click", openCard);
  by("model").replaceChildren("model: ", told);
  by("model").title = `${model.address}, sha256 ${model.digest}`;
}

async function openCard(event) {
  event.preventDefault();
  try {
    by("card-text").textContent = await api.card();
    by("card").showModal();
  } catch (error) {
    complain(error);
  }
}

async function showModel() {
  try {
    tellModel(await api.aboutModel());
  } catch (error) {
    complain(error);
  }
}

by("address").textContent = new URL("./", location).href;
showExamples();
showModel();
