// Programs that work until somebody says that it is enough: `--until FILE`, and the rounds end when there is such a file. What such a
// run prints does not depend on how many rounds there were; whether it was right the program finds out by itself.
#pragma once

#include <cstring>
#include <unistd.h>

namespace program {

class Until {
  public:
    // Takes its own argument out of the list.
    Until(int &argc, char **argv) {
        for (int i = 1; i + 1 < argc; i++) {
            if (std::strcmp(argv[i], "--until") != 0) continue;
            file_ = argv[i + 1];
            for (int k = i; k + 2 <= argc; k++) argv[k] = argv[k + 2];
            argc -= 2;
            return;
        }
    }

    // Whether the file counts and not the steps.
    bool told() const { return file_ != nullptr; }

    // Whether there is another round after so many.
    bool more(long done, long steps) const { return told() ? access(file_, F_OK) != 0 : done < steps; }

  private:
    const char *file_ = nullptr;
};

} // namespace program
