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
	"echo":   func(p *Proc) int { return p.printText(strings.Join(p.Args[1:], " ") + "\n") },
	"printf": func(p *Proc) int { return p.printText(strings.ReplaceAll(strings.Join(p.Args[1:], " "), `\n`, "\n")) },
	"pwd":    func(p *Proc) int { return p.printText(p.Dir + "\n") },
	"env":    func(p *Proc) int { return p.printText(strings.Join(p.Env, "\n") + "\n") },
	"cat":    runCat,
	"sleep":  runSleep,
	"yes":    runYes,
	"id":     runID,
	"ls":     runLs,
	"stty":   runStty,
	"sh":     runShell,
}

// printText writes s to stdout and returns an exit code.
func (p *Proc) printText(s string) int {
	if _, err := io.WriteString(p.Stdout, s); err != nil {
		return 1
	}
	return 0
}

// printError writes err to stderr and returns exit code 1.
func (p *Proc) printError(err error) int {
	fmt.Fprintf(p.Stderr, "%s: %v\n", p.Args[0], err)
	return 1
}

// argAt returns argument i, or "" if there is none.
func (p *Proc) argAt(i int) string {
	if i < len(p.Args) {
		return p.Args[i]
	}
	return ""
}

// intArg returns argument i as a number.
func (p *Proc) intArg(i int) int {
	n, _ := strconv.Atoi(p.argAt(i)) // invalid numbers are 0, as in a shell
	return n
}

func runCat(p *Proc) int {
	if len(p.Args) < 2 {
		if _, err := io.Copy(p.Stdout, p.Stdin); err != nil {
			return 1
		}
		return 0
	}
	for _, name := range p.Args[1:] {
		f, err := p.Open(name)
		if err != nil {
			return p.printError(err)
		}
		_, err = io.Copy(p.Stdout, f)
		f.Close()
		if err != nil {
			return p.printError(err)
		}
	}
	return 0
}

func runSleep(p *Proc) int {
	seconds, err := strconv.ParseFloat(p.argAt(1), 64)
	if err != nil {
		return p.printError(err)
	}
	return p.sleepFor(time.Duration(seconds * float64(time.Second)))
}

// sleepFor waits for d, or until the process ends, and returns an exit code.
func (p *Proc) sleepFor(d time.Duration) int {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return 0
	case <-p.ctx.Done():
		return 1
	}
}

func runYes(p *Proc) int {
	w := bufio.NewWriter(p.Stdout)
	for {
		if _, err := w.WriteString("y\n"); err != nil {
			return 1
		}
	}
}

func runID(p *Proc) int {
	if p.argAt(1) == "-g" {
		return p.printText(strconv.Itoa(p.GID) + "\n")
	}
	return p.printText(strconv.Itoa(p.UID) + "\n")
}

func runLs(p *Proc) int {
	_, host, ok := p.hostPath(p.argAt(1))
	if !ok {
		return 0
	}
	entries, err := os.ReadDir(host)
	if err != nil {
		return p.printError(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			p.printText(e.Name() + "\n")
		}
	}
	return 0
}

func runStty(p *Proc) int {
	if p.argAt(1) != "size" {
		return 1
	}
	return p.printSize()
}

func (p *Proc) printSize() int {
	if !p.tty {
		return p.printError(os.ErrInvalid)
	}
	size, err := process.TerminalSize(p.files[1])
	if err != nil {
		return p.printError(err)
	}
	return p.printText(fmt.Sprintf("%d %d\n", size.Rows, size.Cols))
}

// isDir reports whether name is a directory.
func (p *Proc) isDir(name string) bool {
	_, host, ok := p.hostPath(name)
	if !ok {
		return slices.Contains([]string{"/", "/bin", "/tmp"}, filepath.Clean(name))
	}
	info, err := os.Stat(host)
	return err == nil && info.IsDir()
}
