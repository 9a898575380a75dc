// Build tools, pinned apart from the program's own dependencies.
module github.com/subspan-dev/subspan/tools

go 1.26.0
