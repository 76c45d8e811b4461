// Markdown to elements. HTML in it stays text; what marked and highlight.js make goes through DOMPurify.

import "./vendor/dompurify-3.5.0.js";
import hljs from "./vendor/highlight-11.12.0.js";
import { Marked } from "./vendor/marked-18.2.1.js";
import { copyButton, element } from "./dom.js";
import { mathText } from "./maths.js";

const LONGEST_LIVE = 8000; // characters of code that is coloured while it grows
const TAGS = "a blockquote br code del em h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul".split(" ");
const CLEAN = {
  ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["align", "class", "href", "rel", "start", "target", "title"],
  ALLOW_ARIA_ATTR: false, ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true,
};
const escaped = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

const INLINE = /^(?:\$\$([^$]{1,2000})\$\$|\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)|\\\(([^]{1,2000}?)\\\)|\\\[([^]{1,2000}?)\\\])/;
const BLOCK = /^ {0,3}(?:\$\$((?:(?!\n\s*\n)[^]){1,2000}?)\$\$|\\\[((?:(?!\n\s*\n)[^]){1,2000}?)\\\])[ \t]*(?:\n|$)/;

const formula = (name, level, rule, open, close) => ({
  name, level,
  start: level === "inline" ? (source) => source.match(/\$|\\[([]/)?.index : undefined,
  tokenizer(source) {
    const found = rule.exec(source);
    if (found) return { type: name, raw: found[0], tex: found.slice(1).find((tex) => tex !== undefined) };
    return undefined;
  },
  renderer: ({ tex }) => `${open} title="${escaped(tex.trim())}">${escaped(mathText(tex))}${close}`,
});

let outline = { level: 2 }; // of the heading before

const marked = new Marked({
  gfm: true,
  breaks: true, // models write verses and addresses without the two spaces
  extensions: [
    formula("formula", "inline", INLINE, '<span class="math"', "</span>"),
    formula("formulas", "block", BLOCK, '<p class="math"', "</p>"),
  ],
  tokenizer: { html: () => undefined, tag: () => undefined },
  renderer: {
    heading({ tokens, depth }) { // below the page's own, and none left out
      outline.level = Math.min(depth + 2, outline.level + 1, 6);
      const { level } = outline;
      return `<h${level} class="depth-${depth}">${this.parser.parseInline(tokens)}</h${level}>`;
    },
    link({ href, title, tokens, raw }) {
      if (!/^(https?:|mailto:)/i.test(href)) return escaped(raw);
      const about = title ? ` title="${escaped(title)}"` : "";
      return `<a href="${escaped(href)}"${about} target="_blank" rel="noopener noreferrer">${this.parser.parseInline(tokens)}</a>`;
    },
    image: ({ raw }) => escaped(raw), // from elsewhere, and that would tell where the reader is
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

// A model in a loop may nest thousands of lists, for which marked has no room: its text is shown as it is.
const plain = (raw) => [{ type: "paragraph", raw, tokens: [{ type: "text", raw, text: raw }] }];

/** Blocks with their `raw` text, which together are the whole. */
export function blocksOf(text) {
  try {
    return marked.lexer(text);
  } catch {
    return plain(text);
  }
}

function htmlOf(blocks) {
  try {
    return marked.parser(blocks);
  } catch {
    return marked.parser(plain(blocks.map(({ raw }) => raw).join("")));
  }
}

const clean = (html) => window.DOMPurify.sanitize(html, CLEAN);

/** The elements of blocks. after: {level} of the heading before, which is changed. */
export function rendered(blocks, after) {
  outline = after;
  const found = clean(htmlOf(blocks));
  for (const pre of found.querySelectorAll("pre")) frameCode(pre);
  for (const table of found.querySelectorAll("table")) frame(table, "div", { class: "table", ...focusable("Table") });
  return found;
}

// What is wider than the page scrolls in itself, by keyboard, too.
const focusable = (label) => ({ tabindex: "0", role: "group", "aria-label": label });

function frame(inner, tag, attributes, ...before) {
  const made = element(tag, attributes);
  inner.replaceWith(made);
  made.append(...before, inner);
}

function frameCode(pre) {
  const code = pre.firstElementChild;
  const language = /^language-(.*)/.exec(code?.className ?? "")?.[1] ?? "";
  for (const [name, value] of Object.entries(focusable(language ? `Code, ${language}` : "Code"))) pre.setAttribute(name, value);
  colour(code, code.textContent.replace(/\n$/, ""), language);
  const copy = copyButton("Copy code", () => code.textContent);
  frame(pre, "div", { class: "code" }, element("div", { class: "bar" }, element("span", {}, language || "code"), copy));
}

/** Writes code into its element, in colours where its language is known. */
export function colour(code, text, language, growing = false) {
  const known = hljs.getLanguage(language) && !(growing && text.length > LONGEST_LIVE);
  code.replaceChildren(known ? clean(hljs.highlight(text, { language, ignoreIllegals: true }).value) : text);
}
