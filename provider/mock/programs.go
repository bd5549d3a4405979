package mock

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll/internal/process"
)

var builtins = map[string]Program{
	"true":   func(*Proc) int { return 0 },
	"false":  func(*Proc) int { return 1 },
	"echo":   func(p *Proc) int { return p.print(strings.Join(p.Args[1:], " ") + "\n") },
	"printf": func(p *Proc) int { return p.print(strings.ReplaceAll(strings.Join(p.Args[1:], " "), `\n`, "\n")) },
	"pwd":    func(p *Proc) int { return p.print(p.Dir + "\n") },
	"env":    func(p *Proc) int { return p.print(strings.Join(p.Env, "\n") + "\n") },
	"cat":    cat,
	"sleep":  sleep,
	"yes":    yes,
	"id":     id,
	"ls":     ls,
	"stty":   stty,
	"sh":     sh,
}

func (p *Proc) print(s string) int {
	if _, err := io.WriteString(p.Stdout, s); err != nil {
		return 1
	}
	return 0
}

// fail prints what went wrong.
func (p *Proc) fail(err error) int {
	fmt.Fprintf(p.Stderr, "%s: %v\n", p.Args[0], err)
	return 1
}

func (p *Proc) arg(i int) string {
	if i < len(p.Args) {
		return p.Args[i]
	}
	return ""
}

func (p *Proc) number(i int) int {
	n, _ := strconv.Atoi(p.arg(i)) // what is no number is 0, as in a shell
	return n
}

func cat(p *Proc) int {
	if len(p.Args) < 2 {
		if _, err := io.Copy(p.Stdout, p.Stdin); err != nil {
			return 1
		}
		return 0
	}
	for _, name := range p.Args[1:] {
		f, err := p.Open(name)
		if err != nil {
			return p.fail(err)
		}
		_, err = io.Copy(p.Stdout, f)
		f.Close()
		if err != nil {
			return p.fail(err)
		}
	}
	return 0
}

func sleep(p *Proc) int {
	seconds, err := strconv.ParseFloat(p.arg(1), 64)
	if err != nil {
		return p.fail(err)
	}
	return p.pause(time.Duration(seconds * float64(time.Second)))
}

// pause waits, but not longer than the process lives.
func (p *Proc) pause(d time.Duration) int {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return 0
	case <-p.ctx.Done():
		return 1
	}
}

func yes(p *Proc) int {
	w := bufio.NewWriter(p.Stdout)
	for {
		if _, err := w.WriteString("y\n"); err != nil {
			return 1
		}
	}
}

func id(p *Proc) int {
	if p.arg(1) == "-g" {
		return p.print(strconv.Itoa(p.GID) + "\n")
	}
	return p.print(strconv.Itoa(p.UID) + "\n")
}

func ls(p *Proc) int {
	_, host, ok := p.host(p.arg(1))
	if !ok {
		return 0
	}
	entries, err := os.ReadDir(host)
	if err != nil {
		return p.fail(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			p.print(e.Name() + "\n")
		}
	}
	return 0
}

func stty(p *Proc) int {
	if p.arg(1) != "size" {
		return 1
	}
	return p.printSize()
}

func (p *Proc) printSize() int {
	if !p.tty {
		return p.fail(os.ErrInvalid)
	}
	size, err := process.TerminalSize(p.files[1])
	if err != nil {
		return p.fail(err)
	}
	return p.print(fmt.Sprintf("%d %d\n", size.Rows, size.Cols))
}

// isDir reports whether a name is that of a directory on the data volume.
func (p *Proc) isDir(name string) bool {
	_, host, ok := p.host(name)
	if !ok {
		return slices.Contains([]string{"/", "/bin", "/tmp"}, filepath.Clean(name))
	}
	info, err := os.Stat(host)
	return err == nil && info.IsDir()
}
