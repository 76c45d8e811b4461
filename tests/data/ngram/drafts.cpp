// Prints what llama.cpp's own functions draft: the recorder of drafts.jsonl (see README.md).
// stdin, one case a line: n_draft, then three lists of texts (context, dynamic, static), each as the number of
// texts, then for each its length and tokens. stdout, one line a case: the drafted tokens. The context's single
// text is also the text to go on from; several texts of a level are counted apart and merged.

#include "ngram-cache.h"

#include <iostream>
#include <sstream>

static std::vector<llama_token> text(std::istream & in) {
    size_t n = 0;
    in >> n;
    std::vector<llama_token> out(n);
    for (auto & token : out) {
        in >> token;
    }
    return out;
}

static common_ngram_cache level(std::istream & in, int lo, int hi, std::vector<llama_token> & last) {
    int n = 0;
    in >> n;
    common_ngram_cache sum;
    for (int i = 0; i < n; ++i) {
        last = text(in);
        common_ngram_cache one;
        for (size_t k = 1; k <= last.size(); ++k) {  // token by token, as llama-lookup counts what it generates
            std::vector<llama_token> head(last.begin(), last.begin() + k);
            common_ngram_cache_update(one, lo, hi, head, 1, false);
        }
        common_ngram_cache_merge(sum, one);
    }
    return sum;
}

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream in(line);
        int n_draft = 0;
        in >> n_draft;
        std::vector<llama_token> inp, other;
        auto context = level(in, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, inp);
        auto dynamic = level(in, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, other);
        auto fixed   = level(in, LLAMA_NGRAM_STATIC, LLAMA_NGRAM_STATIC, other);
        std::vector<llama_token> draft = { inp.back() };
        common_ngram_cache_draft(inp, draft, n_draft, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, context, dynamic, fixed);
        for (size_t i = 1; i < draft.size(); ++i) {
            std::cout << (i > 1 ? " " : "") << draft[i];
        }
        std::cout << "\n";
    }
}
