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

// words are the conformance suite's: see package providertest. Args[0] is the
// word itself.
var words = map[string]Program{
	"code": onStdin,
	"exit": func(p *Proc) int { return p.number(1) },
	"both": func(p *Proc) int {
		code := p.print(p.arg(1) + "\n")
		fmt.Fprintln(p.Stderr, p.arg(2))
		return code
	},
	"ready": func(p *Proc) int {
		p.print("ready\n")
		return p.pause(1000 * time.Second)
	},
	"deaf": func(p *Proc) int {
		p.Notify(atoll.SIGTERM)
		p.print("ready\n")
		return p.pause(1000 * time.Second)
	},
	"istty": func(p *Proc) int {
		if p.tty {
			return 0
		}
		return 1
	},
	"eat":     func(p *Proc) int { return 0 },
	"signal":  signalSelf,
	"zeros":   zeros,
	"lines":   lines,
	"drip":    drip,
	"trap":    trap,
	"family":  family,
	"stay":    stay,
	"spin":    sleeper, // who could tell
	"hit":     hit,
	"orphan":  orphan,
	"spawn":   spawn,
	"alive":   alive,
	"store":   store,
	"fill":    fill,
	"flip":    flip,
	"winch":   winch,
	"serve":   serve,
	"web":     web,
	"connect": connect,
	"resolve": func(*Proc) int { return 0 }, // no name is known here
	"mounted": func(p *Proc) int {
		if p.isDir(p.arg(1)) {
			return 0
		}
		return 1
	},
}

func signalSelf(p *Proc) int {
	sig, err := atoll.ParseSignal(p.arg(1))
	if err != nil {
		return p.fail(err)
	}
	_ = p.Signal(sig) // never fails
	return p.pause(5 * time.Second)
}

func zeros(p *Proc) int {
	_, err := io.CopyN(p.Stdout, zeroReader{}, int64(p.number(1)))
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

func lines(p *Proc) int {
	w := bufio.NewWriter(p.Stdout)
	for i := range p.number(1) {
		w.WriteString(strconv.Itoa(i+1) + "\n") // Flush tells
	}
	if w.Flush() != nil {
		return 1
	}
	return 0
}

func drip(p *Proc) int {
	for i := 1; p.print(strconv.Itoa(i)+"\n") == 0 && p.pause(20*time.Millisecond) == 0; i++ {
	}
	return 1
}

func trap(p *Proc) int {
	sig, err := atoll.ParseSignal(p.arg(1))
	if err != nil {
		return p.fail(err)
	}
	sigs := p.Notify(sig)
	p.print("ready\n")
	select {
	case <-sigs:
		p.print("caught\n")
		return 42
	case <-p.ctx.Done():
		return 1
	}
}

func sleeper(p *Proc) int { return p.pause(1000 * time.Second) }

func family(p *Proc) int {
	kid, err := p.fork(sleeper)
	if err != nil {
		return p.fail(err)
	}
	p.print(strconv.Itoa(kid.PID) + "\n")
	select {
	case <-kid.done:
	case <-p.ctx.Done():
	}
	return 0
}

func stay(p *Proc) int {
	for _, name := range p.Args[min(2, len(p.Args)):] {
		text, err := p.ReadFile(name)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = p.WriteFile(name, append(text, p.arg(1)+"\n"...))
		}
		if err != nil {
			return p.fail(err)
		}
	}
	return family(p)
}

func orphan(p *Proc) int {
	kid, err := p.fork(sleeper)
	if err != nil {
		return p.fail(err)
	}
	return p.print(strconv.Itoa(kid.PID) + "\n")
}

func spawn(p *Proc) int {
	for range p.number(1) {
		if _, err := p.fork(func(p *Proc) int { return p.pause(5 * time.Second) }); err != nil {
			return p.fail(err)
		}
	}
	return p.print("all\n")
}

func alive(p *Proc) int {
	if p.world.alive(p.box, p.number(1)) {
		return 0
	}
	return 1
}

func hit(p *Proc) int {
	if p.world.hit(p.box, p.number(1)) {
		return 0
	}
	return 1
}

func store(p *Proc) int {
	if err := p.WriteFile(p.arg(1), []byte(p.arg(2)+"\n")); err != nil {
		return p.fail(err)
	}
	return 0
}

func fill(p *Proc) int {
	if err := p.WriteFile(p.arg(1), make([]byte, p.number(2)<<20)); err != nil {
		return p.fail(err)
	}
	return 0
}

func flip(p *Proc) int {
	_, name, ok := p.host(p.arg(1))
	if !ok {
		return p.fail(fs.ErrInvalid)
	}
	p.print("ready\n")
	for was := name + ".was"; p.ctx.Err() == nil; {
		_ = os.Rename(name, was)
		_ = os.Symlink(p.arg(2), name)
		_ = os.RemoveAll(name)
		_ = os.Rename(was, name)
	}
	return 1
}

func winch(p *Proc) int {
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

func serve(p *Proc) int {
	l, err := net.Listen("tcp", "127.0.0.1:"+p.arg(1))
	if err != nil {
		return p.fail(err)
	}
	defer l.Close()
	defer afterDone(p, l)()
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		stop := afterDone(p, c)
		// Hidden, because a copy between sockets keeps a pipe for later ones.
		io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // the client knows what it got
		c.Close()
		stop()
	}
}

func web(p *Proc) int {
	l, err := net.Listen("tcp", "127.0.0.1:"+p.arg(1))
	if err != nil {
		return p.fail(err)
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
	_ = srv.Serve(l) // until it is killed
	return 1
}

// afterDone closes c when the process is killed before stop is called.
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

func connect(p *Proc) int {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(strings.Trim(p.arg(1), "[]"), p.arg(2)), 3*time.Second)
	if err != nil {
		return 1
	}
	c.Close()
	return 0
}
