//go:build linux

// Command atoll-guest is what Atoll puts into a container: as its first process
// it starts all others, reaps them, and serves the sandbox's API to those whom
// the container's engine lets in. It is also what makes a machine out of a virtual one, or
// out of a distribution of WSL.
//
//	atoll-guest init CONFIG        the first process; CONFIG is a guest.Config as JSON, - for one that is told, or ATOLL_GUEST_CONFIG for that variable's
//	atoll-guest job DIR            the first process of a container for one program: runs the guest.Job in DIR
//	atoll-guest tell               tells an init that waits for it the guest.Config on stdin
//	atoll-guest install DIR        puts this program into a directory of a pod, for init
//	atoll-guest stay DIR           waits for the end of the init that it was put there for
//	atoll-guest reach ADDRESS      tries for some seconds whether HOST:PORT can be reached in the end
//	atoll-guest files WORKDIR      serves files to their user, on its stdin
//	atoll-guest cache DIR PATH...  makes its user's cache directories lead to DIR
//	atoll-guest connect            joins stdin and stdout to the first process
//	atoll-guest distro             the distribution is a virtual machine, whose host is on stdin and stdout
//	atoll-guest unpack             writes the tar archive on stdin over the root file system
//	/init                          the first process of a virtual machine
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

var address = net.UnixAddr{Name: guest.Socket, Net: "unix"}

func main() {
	if os.Getpid() == 1 && os.Args[0] == "/init" { // what follows was for the kernel
		guest.RunComputer()
	}
	code, err := run(os.Args[1:])
	if err != nil {
		r := guest.Report{Kind: atoll.KindOf(err), Message: err.Error()}
		if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
			r.Message = e.Err.Error()
		}
		console.report(r)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	switch {
	case len(args) == 2 && args[0] == "init":
		return initialize(args[1])
	case len(args) == 2 && args[0] == "job":
		return failed(0, guest.RunJob(args[1]))
	case len(args) == 1 && args[0] == "tell":
		return failed(0, tell())
	case len(args) == 2 && args[0] == "install":
		return failed(0, guest.Install(args[1]))
	case len(args) == 2 && args[0] == "stay":
		return failed(0, stay(args[1]))
	case len(args) == 2 && args[0] == "reach":
		return failed(0, guest.Reach(args[1]))
	case len(args) == 2 && args[0] == "files":
		return 0, guest.ServeFiles(args[1])
	case len(args) > 2 && args[0] == "cache":
		return failed(0, guest.LinkCaches(args[1], args[2:]))
	case len(args) == 1 && args[0] == "connect":
		return 0, connect()
	case len(args) == 1 && args[0] == "distro":
		return failed(guest.RunDistro())
	case len(args) == 1 && args[0] == "unpack":
		return failed(0, guest.Unpack())
	}
	return 125, errors.New("usage: atoll-guest init CONFIG | job DIR | tell | install DIR | stay DIR | reach ADDRESS | files WORKDIR | cache DIR PATH... | connect | distro | unpack")
}

// failed says on stderr what went wrong, if anything did, to whoever has executed this.
func failed(code int, err error) (int, error) {
	if err == nil {
		return code, nil
	}
	fmt.Fprintln(os.Stderr, err)
	return 1, nil
}

// stopGrace is how long processes may take to end once the container is to stop;
// its engine, which was told how long, kills all before that.
const stopGrace = 24 * time.Hour

// initialize returns with the main process, or when the container is to stop.
func initialize(text string) (code int, err error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	if text == guest.ConfigVar {
		text = os.Getenv(guest.ConfigVar)
		_ = os.Unsetenv(guest.ConfigVar) // it is nobody else's; this never fails
	}
	if text == "-" {
		self, err := os.Executable()
		if err != nil {
			return 125, err
		}
		alive, err := guest.Alive(self) // whoever brought it stays as long
		if err != nil {
			return 125, err
		}
		defer alive.Close()
		if text, err = told(self, stop); err != nil {
			return 125, err
		}
		if text == "" {
			return 143, nil
		}
	}
	var config guest.Config
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return 125, fmt.Errorf("read configuration: %w", err)
	}
	console.framed, console.lines, console.outcome = config.Framed, config.Lines, config.Outcome
	alive, err := guest.Alive(config.Self)
	if err != nil {
		return 125, err
	}
	defer alive.Close()
	config.Env = append(os.Environ(), config.Env...)
	if !config.Home { // it is that of the first process's user, from the engine
		config.Env = slices.DeleteFunc(config.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
	}
	m, err := guest.NewMachine(config)
	if err != nil {
		return 125, err
	}
	l, err := net.ListenUnix("unix", &address)
	if err != nil {
		return 125, err
	}
	exited := make(chan atoll.Exit, 1)
	if len(config.Cmd) > 0 {
		console.report(guest.Report{Begins: true})
		main, err := m.Main(context.Background())
		if err != nil {
			return codeOf(err), err
		}
		go func() { exited <- follow(main) }()
	}
	served := make(chan error, 1)
	go func() { served <- m.Serve(l) }() // not before: who is answered knows that all of it was started
	idle := make(chan error, 1)
	if limit := time.Duration(config.IdleStop); limit > 0 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { idle <- m.Idle(ctx, limit) }()
	}
	select {
	case <-idle:
		code = 143
		console.report(guest.Report{Reason: "nobody used it for " + config.IdleStop.String(), Idle: true})
	case exit := <-exited:
		code = exit.Code
		console.ended(exit)
	case <-stop:
		code = 143 // as of one that ends by SIGTERM
		_ = m.Stop(context.Background(), stopGrace)
		if len(config.Cmd) > 0 {
			exit := <-exited
			console.report(guest.Report{Main: &exit})
		}
	case err := <-served:
		return 125, err
	}
	_ = m.Stop(context.Background(), 0)
	_ = l.Close()
	<-served
	return code, nil
}

// told waits for this program's configuration; it is "" when the container is to stop.
func told(self string, stop <-chan os.Signal) (string, error) {
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		text, err := guest.Told(self)
		answered <- answer{text, err}
	}()
	select {
	case a := <-answered:
		return a.text, a.err
	case <-stop:
		return "", nil
	}
}

// tell tells the first process what it is to be.
func tell() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return guest.Tell(self, os.Stdin)
}

// codeOf is the exit code for a main process that cannot be started, as docker's.
func codeOf(err error) int {
	switch atoll.KindOf(err) {
	case atoll.ErrCommandNotFound:
		return 127
	case atoll.ErrExecFailed:
		return 126
	}
	return 125
}

// follow passes on what the main process prints, for the engine to keep, and
// returns how it ended.
func follow(p atoll.Process) atoll.Exit {
	_ = p.Attach(context.Background(), &atoll.Attachment{Stdout: console.stdout(), Stderr: console.stderr()})
	exit, err := p.Wait(context.Background())
	if err != nil {
		return atoll.Exit{Code: 137} // with the table, which nothing but a stop closes
	}
	return exit
}

// stay returns when the init has ended for which this program was put into dir, or
// when it is told to end itself.
func stay(dir string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	ended := make(chan error, 1)
	go func() { ended <- guest.Outlive(dir) }()
	select {
	case err := <-ended:
		return err
	case <-stop:
		return nil
	}
}

// connect joins this program's stdin and stdout to the first process.
func connect() error {
	conn, err := dial()
	if err != nil {
		return err
	}
	return guest.Lend(conn, os.Stdin, os.Stdout)
}

// dialTime is how long the first process may take to listen: it may just have
// been started.
const dialTime = 10 * time.Second

func dial() (*net.UnixConn, error) {
	deadline := time.Now().Add(dialTime)
	for delay := time.Millisecond; ; delay = min(2*delay, 100*time.Millisecond) {
		conn, err := net.DialUnix("unix", nil, &address)
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(deadline) {
			return conn, err
		}
		time.Sleep(delay)
	}
}
