#include "sharing.h"

#include <map>
#include <mutex>
#include <vector>

namespace paceline {

using ggml::Buffer;
using ggml::Tensor;

namespace {

struct Owner {
    Buffer *buffer = nullptr;  // a copy, once ggml has dropped its own
    int borrowers = 0;
};
struct Weights {
    Buffer *owner;
    void *data;
};

std::mutex lock;
std::map<std::string, Weights> repacked;
std::map<Buffer *, Owner> owners;
std::map<Buffer *, std::vector<Buffer *>> borrowed;  // by the buffer that refers: one entry a tensor
void (*free_of_ggml)(Buffer *);
thread_local std::string loaded_file;

void release(Buffer *owner) {
    const auto found = owners.find(owner);
    if (--found->second.borrowers > 0 || !found->second.buffer) return;
    free_of_ggml(found->second.buffer);
    delete found->second.buffer;
    owners.erase(found);
}

void free_buffer(Buffer *buffer) {
    const std::lock_guard<std::mutex> held(lock);
    for (Buffer *owner : borrowed[buffer]) release(owner);
    borrowed.erase(buffer);
    for (auto it = repacked.begin(); it != repacked.end();) it = it->second.owner == buffer ? repacked.erase(it) : ++it;
    const auto found = owners.find(buffer);
    if (found != owners.end() && found->second.borrowers > 0) {
        // A new buffer may get this address: the owner goes on under that of the copy.
        Owner owner = found->second;
        owner.buffer = new Buffer(*buffer);
        owners.erase(found);
        owners[owner.buffer] = owner;
        for (auto &one : borrowed)
            for (Buffer *&from : one.second) from = from == buffer ? owner.buffer : from;
        return;
    }
    owners.erase(buffer);
    free_of_ggml(buffer);
}

std::string key_of(const Tensor *t) { return loaded_file + '\n' + t->name + '\n' + std::to_string(t->type); }

}  // namespace

void set_loaded_file(const char *file) { loaded_file = file; }

bool refer_to_shared(Buffer *buffer, Tensor *t) {
    if (loaded_file.empty()) return false;
    const std::lock_guard<std::mutex> held(lock);
    const auto found = repacked.find(key_of(t));
    if (found == repacked.end()) return false;
    t->data = found->second.data;
    owners[found->second.owner].borrowers++;
    borrowed[buffer].push_back(found->second.owner);
    return true;
}

void share(Buffer *buffer, const Tensor *t) {
    if (loaded_file.empty()) return;
    const std::lock_guard<std::mutex> held(lock);
    repacked[key_of(t)] = {buffer, t->data};
    owners[buffer];
}

void watch_free(Buffer *buffer) {
    free_of_ggml = buffer->iface.free_buffer;
    buffer->iface.free_buffer = free_buffer;
}

}  // namespace paceline
