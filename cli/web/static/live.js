// What the server does now: Triton's metrics, asked for every other second.
import { at, get } from "./common.js";

const POLL_MS = 2000;
let before = null;

async function poll() {
  try {
    const now = await get("/api/live");
    if (now.away) {
      at("rate").textContent = "server away";
      before = null;
      return;
    }
    const ms = (value) => (value === null ? "–" : `${value.toFixed(1)} ms`);
    at("p50").textContent = ms(now.p50_ms);
    at("p99").textContent = ms(now.p99_ms);
    const bad = ["deadline", "queue", "arena", "failed", "bad_input"];
    at("refused").textContent = String(bad.reduce((sum, outcome) => sum + (now.outcomes[outcome] || 0), 0));
    if (before && now.answered >= before.answered) {
      at("rate").textContent = ((now.answered - before.answered) / (now.seconds - before.seconds)).toFixed(1);
    }
    before = now;
  } catch (error) {
    at("rate").textContent = error.kind === "page" ? "page away" : "unknown";
    before = null;
  }
}

export function watch() {
  poll();
  setInterval(poll, POLL_MS);
}
