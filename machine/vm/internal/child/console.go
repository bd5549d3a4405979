package child

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// MaxConsole is the largest size of a console file, since the guest decides how much it prints.
const MaxConsole = 16 << 20

// Console returns a file to which a machine's output is appended, up to MaxConsole. It drops the
// rest, and everything if path is empty or the disk is full. Only its user can read the file.
func Console(path string) (io.WriteCloser, error) {
	f, err := vm.OpenConsole(path)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("console: %w", err)
	}
	return &console{f: f, left: MaxConsole - info.Size()}, nil
}

type console struct {
	f *os.File

	mu   sync.Mutex
	left int64 // bytes until the file is full; then fullNotice follows
}

// fullNotice is the last line of a full console.
var fullNotice = []byte("\n[the console's file is full; the rest is dropped]\n")

// Write implements io.Writer. It never fails: a machine goes on without its console.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left <= 0 {
		return len(b), nil
	}
	part := b[:min(int64(len(b)), c.left)]
	c.left -= int64(len(part))
	_, _ = c.f.Write(part)
	if c.left == 0 {
		_, _ = c.f.Write(fullNotice)
	}
	return len(b), nil
}

func (c *console) Close() error { return c.f.Close() }
