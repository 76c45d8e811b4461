// Formulas as text: TeX's commands as the characters that they stand for, where there are such.

const SYMBOLS = new Map(`alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ mu μ
  nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi φ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π
  Sigma Σ Phi Φ Psi Ψ Omega Ω times × cdot · div ÷ pm ± mp ∓ ast ∗ circ ∘ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ equiv ≡
  sim ∼ propto ∝ ll ≪ gg ≫ infty ∞ partial ∂ nabla ∇ sum ∑ prod ∏ int ∫ oint ∮ to → rightarrow → Rightarrow ⇒ implies ⇒
  leftarrow ← Leftarrow ⇐ leftrightarrow ↔ iff ⇔ mapsto ↦ in ∈ notin ∉ subset ⊂ subseteq ⊆ cup ∪ cap ∩ setminus ∖ emptyset ∅
  forall ∀ exists ∃ neg ¬ land ∧ lor ∨ wedge ∧ vee ∨ oplus ⊕ otimes ⊗ perp ⊥ mid ∣ parallel ∥ angle ∠ degree ° ldots … cdots ⋯
  dots … prime ′ hbar ℏ ell ℓ Re ℜ Im ℑ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ langle ⟨ rangle ⟩ quad \u2003 qquad \u2003`
  .split(/[\n ]+/).reduce((pairs, word, i, all) => (i % 2 ? pairs : [...pairs, [word, all[i + 1]]]), []));
const FUNCTIONS = new Set("sin cos tan cot log ln exp min max lim sup inf det gcd mod arg dim ker".split(" "));
const WORDS = /\\(?:text|textbf|mathrm|mathbf|mathit|mathsf|operatorname|boxed|vec|hat|bar|overline|underline)\s*\{([^{}]*)\}/g;
const NOTHING = /\\(?:left|right|big|Big|displaystyle|limits|begin\{[^{}]*\}|end\{[^{}]*\})(?![a-zA-Z])|&/g;
const SETS = { R: "ℝ", N: "ℕ", Z: "ℤ", Q: "ℚ", C: "ℂ", P: "ℙ", E: "𝔼" };
const UP = ["0123456789+-=()niabcdeghjklmoprstuvwxyzT", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵃᵇᶜᵈᵉᵍʰʲᵏˡᵐᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀ"];
const DOWN = ["0123456789+-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"];

/** text in small characters above or below the line, or with a sign before it where some have no small form. */
function small(text, [from, to], sign) {
  const found = [...text].map((character) => to[from.indexOf(character)]);
  if (found.every(Boolean)) return found.join("");
  return sign + (found.length > 1 ? grouped(text) : text);
}

const grouped = (text) => (/^(\p{L}|[\d.]*|\([^()]*\))$/u.test(text) ? text : `(${text})`);

export function mathText(tex) {
  let text = tex.replace(/\\\\(\[[^\]]*\])?/g, "\n").replace(NOTHING, "").replace(/\\[,;:! ]|~/g, " ");
  text = text.replace(/\\mathbb\s*\{([A-Z])\}/g, (_, letter) => SETS[letter] ?? letter);
  text = text.replace(/\\([a-zA-Z]+)/g, (whole, name) => SYMBOLS.get(name) ?? (FUNCTIONS.has(name) ? name : whole));
  for (let before = ""; before !== text; ) { // from the inside out
    before = text;
    text = text.replace(WORDS, "$1")
      .replace(/\^\{([^{}]*)\}/g, (_, inner) => small(inner.trim(), UP, "^"))
      .replace(/_\{([^{}]*)\}/g, (_, inner) => small(inner.trim(), DOWN, "_"))
      .replace(/\\sqrt\s*\{([^{}]*)\}/g, (_, inner) => `√${grouped(inner.trim())}`)
      .replace(/\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}/g, (_, up, down) => `${grouped(up.trim())}/${grouped(down.trim())}`);
  }
  text = text.replace(/\^([^\s({])/g, (_, one) => small(one, UP, "^")).replace(/_([^\s({])/g, (_, one) => small(one, DOWN, "_"));
  return text.replace(/\\([{}%$#&_|])/g, "$1").replace(/[ \t]+/g, " ").trim();
}
