// What the parts of the page share. Everything from the server is put in as text, never as HTML.

export const at = (id) => document.getElementById(id);
export const WORDS = {
  beam: "Beam search", draft: "Draft head",
  bad_input: "The server refuses this request", overloaded: "The server is overloaded; try again",
  deadline: "The deadline passed", away: "No server answers; it may be starting again",
  timeout: "The server did not answer in time", failed: "The server failed", page: "The page's own server has ended",
};

export class Refusal extends Error {
  constructor(kind, message) { super(message); this.kind = kind; }
}

export async function get(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw new Refusal("page", "start `genrec web` again");
  }
  const body = await response.json().catch(() => ({ error: { kind: "failed", message: response.statusText } }));
  if (body.error && !response.ok) throw new Refusal(body.error.kind, body.error.message);
  return body;
}

export function make(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

export const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
export const named = (item) => item.title || `item ${item.id}`;

export function say(text, bad) {
  at("status").textContent = text;
  at("status").classList.toggle("bad", Boolean(bad));
}

export function refuse(error) {
  const field = /^(\w+): /.exec(error.message);
  const wrong = field && at(field[1]);
  if (wrong) {
    wrong.setAttribute("aria-invalid", "true");
    wrong.focus();
  }
  say(`${WORDS[error.kind] || WORDS.failed}: ${error.message}`, true);
}

export function forgive() {
  for (const wrong of document.querySelectorAll("[aria-invalid]")) wrong.removeAttribute("aria-invalid");
}
