//go:build linux

package engineprogram

import (
	"sync"

	"github.com/seed46cd37a8/atoll/internal/pagecache"
)

// opened are the programs that this process uses, by the directory of their files. They stay open as long as it runs.
var (
	mu     sync.Mutex
	opened = map[string]*executable{}
)

// Path returns the path of the program, for this process alone. The program's file is below dir; the first call of a
// version writes it.
func Path(dir string) (string, error) {
	mu.Lock()
	defer mu.Unlock()
	exe := opened[dir]
	if exe != nil && exe.hasFile() {
		_ = pagecache.Load(exe.file) // the system may have dropped its pages
		return exe.path, nil
	}
	exe, err := (program{packed, sum}).openFile(dir)
	if err != nil {
		return "", err
	}
	opened[dir] = exe
	return exe.path, nil
}
