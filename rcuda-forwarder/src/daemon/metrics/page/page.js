// Shows what status.json says, again and again. What it says of jobs comes from anybody who has a token: it becomes text of the page, never markup.
"use strict";

const EVERY = 2000;
const LATEST = 10 * 60 * 1000;
const SVG = "http://www.w3.org/2000/svg";

function bytes(n) {
  if (n === null) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit + 1 < units.length) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(1) : n) + " " + units[unit];
}

// A figure with its unit; what is not known is no 0.
const figure = (value, unit) => value === null ? "-" : Math.round(value) + unit;

function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return s + " s";
  if (s < 7200) return Math.floor(s / 60) + " min";
  return s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days";
}

const place = (gpu) => gpu === null ? "memory" : "GPU " + gpu;

// Whose a stay is, as far as the server tells.
function owner(stay) {
  if (!stay.job) return "a job";
  return stay.job.pid + " " + stay.job.name;
}

function from(job) {
  const user = job.user === null ? "" : job.user;
  return job.host === null ? user || "its machine" : (user && user + "@") + job.host;
}

// Fills a table: headings, of which those that begin with # are of figures, and rows of texts or elements.
function table(id, headings, rows, none) {
  const cell = (kind, content, heading) => {
    const cell = document.createElement(kind);
    cell.append(content);
    if (heading.startsWith("#")) cell.className = "number";
    return cell;
  };
  const row = (kind, cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((content, n) => cell(kind, content, headings[n])));
    return row;
  };
  const lines = [row("th", headings.map((heading) => heading.replace("#", ""))), ...rows.map((cells) => row("td", cells))];
  if (!rows.length) {
    const empty = row("td", [none]);
    empty.firstChild.className = "none";
    empty.firstChild.colSpan = headings.length;
    lines.splice(0, 1, empty);
  }
  document.getElementById(id).replaceChildren(...lines);
}

function meter(value, max) {
  if (value === null || max === null) return "-";
  const meter = document.createElement("meter");
  meter.max = max;
  meter.value = value;
  return meter;
}

function gpus(now, before) {
  const seconds = before ? (now.now_unix_ms - before.now_unix_ms) / 1000 : 0;
  const rate = (gpu, name) => {
    const last = before && before.gpus[gpu.gpu];
    return last && seconds > 0 ? bytes(Math.max(0, Math.round((gpu[name] - last[name]) / seconds))) + "/s" : "-";
  };
  const row = (gpu) => [
    String(gpu.gpu),
    gpu.name || "-",
    meter(gpu.total_bytes !== null && gpu.free_bytes !== null ? gpu.total_bytes - gpu.free_bytes : null, gpu.total_bytes),
    bytes(gpu.free_bytes),
    bytes(gpu.total_bytes),
    bytes(gpu.used_bytes),
    String(gpu.jobs),
    String(gpu.waiting),
    rate(gpu, "bytes_in"),
    rate(gpu, "bytes_out"),
    gpu.moved_in + " / " + gpu.moved_out,
  ];
  table("gpus", ["GPU", "Model", "In use", "#Free", "#Memory", "#Of jobs", "#Jobs", "#Waiting", "#In", "#Out", "#Moves in / out"], now.gpus.map(row), "no GPUs");
}

// What NVML says of the GPUs.
function measured(now) {
  const row = (gpu) => [
    String(gpu.gpu),
    meter(gpu.utilization_percent, 100),
    figure(gpu.utilization_percent, "%"),
    figure(gpu.memory_utilization_percent, "%"),
    figure(gpu.power_watts, " W"),
    figure(gpu.power_limit_watts, " W"),
    figure(gpu.temperature_celsius, " °C"),
    figure(gpu.sm_clock_mhz, " MHz"),
  ];
  const [rows, none] = now.no_readings === null ? [now.gpus.map(row), "no GPUs"] : [[], "not known: " + now.no_readings];
  table("measured", ["GPU", "", "#Utilization", "#Memory utilization", "#Power", "#Power limit", "#Temperature", "#SM clock"], rows, none);
}

function jobs(now) {
  const here = now.stays.filter((stay) => stay.until_unix_ms === null);
  const named = (stay) => stay.job ? [String(stay.job.pid), stay.job.name, from(stay.job)] : ["-", "-", "-"];
  table("jobs", ["Where", "Process", "Name", "From", "#Memory", "#Since", "Came by a move"],
    here.map((stay) => [place(stay.gpu), ...named(stay), bytes(stay.used_bytes), duration(now.now_unix_ms - stay.since_unix_ms), stay.moved_in ? "yes" : "no"]),
    "no jobs");
  const users = new Map();
  for (const stay of here.filter((stay) => stay.job)) {
    const user = users.get(from(stay.job)) || { jobs: 0, bytes: 0 };
    users.set(from(stay.job), { jobs: user.jobs + 1, bytes: user.bytes + (stay.used_bytes || 0) });
  }
  const none = now.names_jobs ? "no users" : "The server names jobs and users here if it was started with --metrics-jobs.";
  table("users", ["User", "#Workers", "#Memory"], [...users].map(([name, user]) => [name, String(user.jobs), bytes(user.bytes)]), none);
}

const isSame = (one, other) => one.job && other.job && one.job.pid === other.job.pid && one.job.host === other.job.host;

// The moves to and from this server, latest first. Where a job has left one GPU for another of this server it is one move.
function moves(stays) {
  const arrivals = stays.filter((stay) => stay.moved_in);
  const found = [];
  for (const out of stays.filter((stay) => stay.moved_out && stay.until_unix_ms !== null)) {
    const to = arrivals.findIndex((stay) => isSame(stay, out) && stay !== out && stay.since_unix_ms >= out.since_unix_ms && stay.since_unix_ms <= out.until_unix_ms);
    const [arrival] = to < 0 ? [null] : arrivals.splice(to, 1);
    found.push({ at: out.until_unix_ms, out, arrival });
  }
  arrivals.forEach((arrival) => found.push({ at: arrival.since_unix_ms, out: null, arrival }));
  return found.sort((one, other) => other.at - one.at);
}

function element(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  if (text !== undefined) element.textContent = text;
  return element;
}

function timeline(now, all) {
  const svg = document.getElementById("timeline");
  const width = Math.max(300, svg.clientWidth), left = 64, line = 20;
  const start = Math.max(now.now_unix_ms - LATEST, Math.min(now.since_unix_ms, now.now_unix_ms - 60000));
  const x = (at) => left + (width - left) * Math.min(1, Math.max(0, (at - start) / (now.now_unix_ms - start)));
  const end = (stay) => stay.until_unix_ms === null ? now.now_unix_ms : stay.until_unix_ms;
  const shown = now.stays.filter((stay) => end(stay) >= start).sort((one, other) => one.since_unix_ms - other.since_unix_ms);
  // Each GPU has as many lines as jobs have shared it at a time; a line is taken again when its job has left.
  const gpus = now.gpus.map((gpu) => gpu.gpu).concat(shown.some((stay) => stay.gpu === null) ? [null] : []);
  const tops = new Map(), lanes = [];
  let height = 4;
  for (const gpu of gpus) {
    const lines = [];
    for (const stay of shown.filter((stay) => stay.gpu === gpu)) {
      const free = lines.findIndex((until) => until <= stay.since_unix_ms);
      const at = free < 0 ? lines.length : free;
      lines[at] = end(stay);
      tops.set(stay, height + at * line);
    }
    const top = height;
    height += Math.max(1, lines.length) * line + 8;
    lanes.push({ gpu, top, bottom: height - 5 });
  }
  height += 16;
  svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  svg.setAttribute("height", height);
  const parts = [];
  for (const { gpu, top, bottom } of lanes) {
    parts.push(element("text", { x: 0, y: top + 12 }, place(gpu)));
    parts.push(element("line", { class: "lane", x1: left, x2: width, y1: bottom, y2: bottom }));
  }
  for (const [stay, top] of tops) {
    const [x1, x2] = [x(stay.since_unix_ms), x(end(stay))];
    const bar = element("rect", { class: stay.end === "failed" ? "stay failed" : "stay", x: x1, y: top, width: Math.max(2, x2 - x1), height: 16, rx: 3 });
    bar.append(element("title", {}, owner(stay) + " at " + place(stay.gpu) + " for " + duration(end(stay) - stay.since_unix_ms)));
    parts.push(bar);
    if (x2 - x1 > 90) parts.push(element("text", { class: "name", x: x1 + 8, y: top + 12 }, owner(stay).slice(0, Math.floor((x2 - x1) / 8))));
  }
  for (const { at, out, arrival } of all.filter((move) => move.at >= start)) {
    const [from, to] = [out, arrival].map((stay) => tops.has(stay) ? tops.get(stay) + 8 : null);
    if (from !== null && to !== null) parts.push(element("line", { class: "move", x1: x(at), x2: x(at), y1: from, y2: to }));
    parts.push(element("circle", { class: "end", cx: x(at), cy: to === null ? from : to, r: 4 }));
  }
  [0, 0.25, 0.5, 0.75, 1].forEach((part) => {
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    parts.push(element("text", { x: left + (width - left) * part, y: height - 3, "text-anchor": anchor }, part === 1 ? "now" : duration((1 - part) * (now.now_unix_ms - start)) + " ago"));
  });
  svg.replaceChildren(...parts);
}

function show(now, before) {
  const ending = now.ending ? ", ending: it takes no new jobs" : "";
  say("version " + now.version + ", serving for " + duration(now.now_unix_ms - now.since_unix_ms) + ending, false);
  const all = moves(now.stays);
  gpus(now, before);
  measured(now);
  jobs(now);
  timeline(now, all);
  const where = (stay) => stay ? place(stay.gpu) : "elsewhere";
  table("moves", ["Ago", "Job", "From", "To"],
    all.slice(0, 50).map(({ at, out, arrival }) => [duration(now.now_unix_ms - at), owner(out || arrival), where(out), where(arrival)]),
    "no moves to or from this server");
}

function say(text, isBad) {
  const line = document.getElementById("server");
  line.textContent = text;
  line.className = isBad ? "bad" : "";
}

async function follow() {
  let before = null;
  for (;;) {
    if (!document.hidden) {
      try {
        const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(10000) });
        if (!answer.ok) throw new Error(answer.status + " " + answer.statusText);
        const now = await answer.json();
        show(now, before);
        before = now;
      } catch (why) {
        say("the server does not answer: " + why.message, true);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

follow();
