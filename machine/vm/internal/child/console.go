package child

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// MaxConsole is how large a console's file may become: what a guest prints is its own
// choice, and the disk is not.
const MaxConsole = 16 << 20

// Console returns a file that what a machine prints is appended to, up to MaxConsole;
// what is more is dropped, as is all when path is empty, or the disk is full. The file
// is its user's alone.
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
	left int64 // until it is full; then one line says so
}

// full is that line.
var full = []byte("\n[the console's file is full; the rest is dropped]\n")

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
		_, _ = c.f.Write(full)
	}
	return len(b), nil
}

func (c *console) Close() error { return c.f.Close() }
