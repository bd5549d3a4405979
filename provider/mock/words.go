package mock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// words are the programs of the conformance suite's words; see package providertest. Args[0] is the
// word itself.
var words = map[string]Program{
	"code": runStdinScript,
	"exit": func(p *Proc) int { return p.intArg(1) },
	"both": func(p *Proc) int {
		code := p.printText(p.argAt(1) + "\n")
		fmt.Fprintln(p.Stderr, p.argAt(2))
		return code
	},
	"ready": readyUntilKilled,
	"renew": readyUntilKilled, // a process here has no exec
	"deaf": func(p *Proc) int {
		p.Notify(atoll.SIGTERM)
		p.printText("ready\n")
		return p.sleepFor(1000 * time.Second)
	},
	"istty": func(p *Proc) int {
		if p.tty {
			return 0
		}
		return 1
	},
	"eat":     func(p *Proc) int { return 0 },
	"signal":  signalSelf,
	"zeros":   printZeros,
	"lines":   printLines,
	"drip":    printSlowly,
	"trap":    trapSignal,
	"recite":  reciteAtEnd,
	"family":  waitForChild,
	"stay":    appendAndWait,
	"spin":    sleepLong, // no test can tell the difference
	"hit":     killOther,
	"orphan":  leaveOrphan,
	"spawn":   spawnChildren,
	"alive":   checkAlive,
	"store":   storeText,
	"fill":    fillFile,
	"flip":    flipSymlink,
	"winch":   printSizeChanges,
	"serve":   serveEcho,
	"web":     serveWeb,
	"connect": tryConnect,
	"resolve": func(*Proc) int { return 0 }, // no name resolves here
	"mounted": func(p *Proc) int {
		if p.isDir(p.argAt(1)) {
			return 0
		}
		return 1
	},
}

func readyUntilKilled(p *Proc) int {
	p.printText("ready\n")
	return p.sleepFor(1000 * time.Second)
}

func signalSelf(p *Proc) int {
	sig, err := atoll.ParseSignal(p.argAt(1))
	if err != nil {
		return p.printError(err)
	}
	_ = p.Signal(sig) // never fails
	return p.sleepFor(5 * time.Second)
}

func printZeros(p *Proc) int {
	_, err := io.CopyN(p.Stdout, zeroReader{}, int64(p.intArg(1)))
	if err != nil {
		return 1
	}
	return 0
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func printLines(p *Proc) int { return p.printNumbers(p.intArg(1)) }

// printNumbers prints the numbers from 1 to n, each on a line.
func (p *Proc) printNumbers(n int) int {
	w := bufio.NewWriter(p.Stdout)
	for i := range n {
		w.WriteString(strconv.Itoa(i+1) + "\n") // Flush returns the error
	}
	if w.Flush() != nil {
		return 1
	}
	return 0
}

func printSlowly(p *Proc) int {
	for i := 1; p.printText(strconv.Itoa(i)+"\n") == 0 && p.sleepFor(20*time.Millisecond) == 0; i++ {
	}
	return 1
}

func trapSignal(p *Proc) int {
	sig, err := atoll.ParseSignal(p.argAt(1))
	if err != nil {
		return p.printError(err)
	}
	sigs := p.Notify(sig)
	p.printText("ready\n")
	select {
	case <-sigs:
		p.printText("caught\n")
		return 42
	case <-p.ctx.Done():
		return 1
	}
}

func reciteAtEnd(p *Proc) int {
	stop := p.Notify(atoll.SIGTERM)
	p.printText("ready\n")
	select {
	case <-stop:
		p.printNumbers(300_000)
		return 42
	case <-p.ctx.Done():
		return 1
	}
}

func sleepLong(p *Proc) int { return p.sleepFor(1000 * time.Second) }

func waitForChild(p *Proc) int {
	child, err := p.startChild(sleepLong)
	if err != nil {
		return p.printError(err)
	}
	p.printText(strconv.Itoa(child.PID) + "\n")
	select {
	case <-child.done:
	case <-p.ctx.Done():
	}
	return 0
}

func appendAndWait(p *Proc) int {
	for _, name := range p.Args[min(2, len(p.Args)):] {
		text, err := p.ReadFile(name)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = p.WriteFile(name, append(text, p.argAt(1)+"\n"...))
		}
		if err != nil {
			return p.printError(err)
		}
	}
	return waitForChild(p)
}

func leaveOrphan(p *Proc) int {
	child, err := p.startChild(sleepLong)
	if err != nil {
		return p.printError(err)
	}
	return p.printText(strconv.Itoa(child.PID) + "\n")
}

func spawnChildren(p *Proc) int {
	for range p.intArg(1) {
		if _, err := p.startChild(func(p *Proc) int { return p.sleepFor(5 * time.Second) }); err != nil {
			return p.printError(err)
		}
	}
	return p.printText("all\n")
}

func checkAlive(p *Proc) int {
	if p.backend.hasProcess(p.sandboxID, p.intArg(1)) {
		return 0
	}
	return 1
}

func killOther(p *Proc) int {
	if p.backend.killProcess(p.sandboxID, p.intArg(1)) {
		return 0
	}
	return 1
}

func storeText(p *Proc) int {
	if err := p.WriteFile(p.argAt(1), []byte(p.argAt(2)+"\n")); err != nil {
		return p.printError(err)
	}
	return 0
}

func fillFile(p *Proc) int {
	if err := p.WriteFile(p.argAt(1), make([]byte, p.intArg(2)<<20)); err != nil {
		return p.printError(err)
	}
	return 0
}

func flipSymlink(p *Proc) int {
	_, name, ok := p.hostPath(p.argAt(1))
	if !ok {
		return p.printError(fs.ErrInvalid)
	}
	p.printText("ready\n")
	for was := name + ".was"; p.ctx.Err() == nil; {
		_ = os.Rename(name, was)
		_ = os.Symlink(p.argAt(2), name)
		_ = os.RemoveAll(name)
		_ = os.Rename(was, name)
	}
	return 1
}

func printSizeChanges(p *Proc) int {
	sigs := p.Notify(atoll.SIGWINCH)
	for p.printSize() == 0 {
		select {
		case <-sigs:
		case <-p.ctx.Done():
			return 1
		}
	}
	return 1
}

func serveEcho(p *Proc) int {
	l, err := net.Listen("tcp", "127.0.0.1:"+p.argAt(1))
	if err != nil {
		return p.printError(err)
	}
	defer l.Close()
	defer afterDone(p, l)()
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		stop := afterDone(p, c)
		// Hide ReadFrom and WriteTo: a copy between sockets keeps a pipe for later copies.
		io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // the client notices an error itself
		c.Close()
		stop()
	}
}

func serveWeb(p *Proc) int {
	l, err := net.Listen("tcp", "127.0.0.1:"+p.argAt(1))
	if err != nil {
		return p.printError(err)
	}
	defer afterDone(p, l)()
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/out" {
			http.Redirect(w, r, "http://example.com/in", http.StatusFound)
			return
		}
		fmt.Fprint(w, r.Host, " ", r.URL.Path)
	})}
	defer srv.Close()
	_ = srv.Serve(l) // until the process is killed
	return 1
}

// afterDone closes c if the process ends before the caller calls stop.
func afterDone(p *Proc, c io.Closer) (stop func()) {
	stopped := make(chan struct{})
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		select {
		case <-p.ctx.Done():
			c.Close()
		case <-stopped:
		}
	}()
	return func() { close(stopped); <-closed }
}

func tryConnect(p *Proc) int {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(strings.Trim(p.argAt(1), "[]"), p.argAt(2)), 3*time.Second)
	if err != nil {
		return 1
	}
	c.Close()
	return 0
}
