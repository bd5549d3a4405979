//go:build linux

package engineprogram

import (
	"sync"

	"github.com/seed46cd37a8/atoll/internal/pagecache"
)

// A Program is one that make build puts inside, by the name of its command.
type Program string

// The programs.
const (
	GVisor Program = "atoll-engine" // runs gVisor's sandboxes
	Native Program = "atoll-native" // runs native sandboxes
)

// opened are the programs that this process uses. They stay open as long as it runs.
var (
	mu     sync.Mutex
	opened = map[place]*executable{}
)

// A place is a program and the directory of its files.
type place struct {
	program Program
	dir     string
}

// Path returns the path of the program, for this process alone. The program's file is below dir; the first call of a
// version writes it, and removes those of versions that are no longer used. So each program needs a dir of its own.
func (p Program) Path(dir string) (string, error) {
	mu.Lock()
	defer mu.Unlock()
	key := place{p, dir}
	exe := opened[key]
	if exe != nil && exe.hasFile() {
		_ = pagecache.Load(exe.file) // the system may have dropped its pages
		return exe.path, nil
	}
	exe, err := p.findPacked().openFile(dir)
	if err != nil {
		return "", err
	}
	opened[key] = exe
	return exe.path, nil
}
