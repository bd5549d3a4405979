//go:build linux

// Command atoll-guest is Atoll's program inside a container: as its first process it starts all others,
// reaps them, and serves the sandbox's API to the callers that the container's engine admits. It is
// also the first program of a virtual machine, and of a distribution of WSL.
//
//	atoll-guest init CONFIG        the first process; CONFIG is a guest.Config as JSON, - to wait for tell, or ATOLL_GUEST_CONFIG for that variable's value
//	atoll-guest job DIR            the first process of a container for one program: runs the guest.Job in DIR
//	atoll-guest tell               passes the guest.Config on stdin to a waiting init
//	atoll-guest install DIR        copies this program into a directory of a pod, for init
//	atoll-guest stay DIR           waits for the end of the init that uses the copy in DIR
//	atoll-guest reach ADDRESS      tries for some seconds to connect to HOST:PORT
//	atoll-guest files WORKDIR      serves the files of its user, on its stdin
//	atoll-guest cache DIR PATH...  links its user's cache directories to DIR
//	atoll-guest connect            connects stdin and stdout to the first process
//	atoll-guest distro             makes the distribution a machine, whose host is on stdin and stdout
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

var socketAddress = net.UnixAddr{Name: guest.Socket, Net: "unix"}

func main() {
	if os.Getpid() == 1 && os.Args[0] == "/init" { // the arguments were for the kernel
		guest.RunComputer()
	}
	code, err := runCommand(os.Args[1:])
	if err != nil {
		r := guest.Report{Kind: atoll.KindOf(err), Message: err.Error()}
		if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
			r.Message = e.Err.Error()
		}
		console.writeReport(r)
	}
	os.Exit(code)
}

// runCommand executes the subcommand in args, and returns the exit code.
func runCommand(args []string) (code int, err error) {
	switch {
	case len(args) == 2 && args[0] == "init":
		return runInit(args[1])
	case len(args) == 2 && args[0] == "job":
		return printError(0, guest.RunJob(args[1]))
	case len(args) == 1 && args[0] == "tell":
		return printError(0, sendConfig())
	case len(args) == 2 && args[0] == "install":
		return printError(0, guest.Install(args[1]))
	case len(args) == 2 && args[0] == "stay":
		return printError(0, awaitInit(args[1]))
	case len(args) == 2 && args[0] == "reach":
		return printError(0, guest.Reach(args[1]))
	case len(args) == 2 && args[0] == "files":
		return 0, guest.ServeFiles(args[1])
	case len(args) > 2 && args[0] == "cache":
		return printError(0, guest.LinkCaches(args[1], args[2:]))
	case len(args) == 1 && args[0] == "connect":
		return 0, connectStdio()
	case len(args) == 1 && args[0] == "distro":
		return printError(guest.RunDistro())
	case len(args) == 1 && args[0] == "unpack":
		return printError(0, guest.Unpack())
	}
	return 125, errors.New("usage: atoll-guest init CONFIG | job DIR | tell | install DIR | stay DIR | reach ADDRESS | files WORKDIR | cache DIR PATH... | connect | distro | unpack")
}

// printError prints err, if there is one, on stderr for the caller of this program.
func printError(code int, err error) (int, error) {
	if err == nil {
		return code, nil
	}
	fmt.Fprintln(os.Stderr, err)
	return 1, nil
}

// stopGrace bounds the time of processes to end when the container stops; the engine has its own
// limit, and kills them before that.
const stopGrace = 24 * time.Hour

// runInit runs the first process. It returns when the main process ends, or when the container
// stops.
func runInit(text string) (code int, err error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	if text == guest.ConfigVar {
		text = os.Getenv(guest.ConfigVar)
		_ = os.Unsetenv(guest.ConfigVar) // other programs must not see it; this never fails
	}
	if text == "-" {
		self, err := os.Executable()
		if err != nil {
			return 125, err
		}
		alive, err := guest.Alive(self) // the program that copied it stays as long
		if err != nil {
			return 125, err
		}
		defer alive.Close()
		if text, err = awaitConfig(self, stop); err != nil {
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
	if !config.Home { // the user of the first process determines HOME, from the engine
		config.Env = slices.DeleteFunc(config.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
	}
	m, err := guest.NewMachine(config)
	if err != nil {
		return 125, err
	}
	l, err := net.ListenUnix("unix", &socketAddress)
	if err != nil {
		return 125, err
	}
	exited := make(chan atoll.Exit, 1)
	if len(config.Cmd) > 0 {
		console.writeReport(guest.Report{Begins: true})
		main, err := m.Main(context.Background())
		if err != nil {
			return codeOf(err), err
		}
		go func() { exited <- copyOutput(main) }()
	}
	served := make(chan error, 1)
	go func() { served <- m.Serve(l) }() // not earlier: an answer means that all of it has started
	idle := make(chan error, 1)
	if limit := time.Duration(config.IdleStop); limit > 0 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { idle <- m.Idle(ctx, limit) }()
	}
	select {
	case <-idle:
		code = 143
		console.writeReport(guest.Report{Reason: "nobody used it for " + config.IdleStop.String(), Idle: true})
	case exit := <-exited:
		code = exit.Code
		console.reportExit(exit)
	case <-stop:
		code = 143 // like a program that ends by SIGTERM
		_ = m.Stop(context.Background(), stopGrace)
		if len(config.Cmd) > 0 {
			exit := <-exited
			console.writeReport(guest.Report{Main: &exit})
		}
	case err := <-served:
		return 125, err
	}
	_ = m.Stop(context.Background(), 0)
	_ = l.Close()
	<-served
	return code, nil
}

// awaitConfig waits for this program's configuration; it returns "" when the container stops.
func awaitConfig(self string, stop <-chan os.Signal) (string, error) {
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

// sendConfig passes the configuration on stdin to the first process.
func sendConfig() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return guest.Tell(self, os.Stdin)
}

// codeOf returns the exit code for a main process that cannot start, as docker does.
func codeOf(err error) int {
	switch atoll.KindOf(err) {
	case atoll.ErrCommandNotFound:
		return 127
	case atoll.ErrExecFailed:
		return 126
	}
	return 125
}

// copyOutput copies the output of the main process to the log, for the engine to retain, and
// returns how it ended.
func copyOutput(p atoll.Process) atoll.Exit {
	_ = p.Attach(context.Background(), &atoll.Attachment{Stdout: console.stdoutWriter(), Stderr: console.stderrWriter()})
	exit, err := p.Wait(context.Background())
	if err != nil {
		return atoll.Exit{Code: 137} // ended with the process table, which only a stop closes
	}
	return exit
}

// awaitInit returns when the init has ended that uses the copy of this program in dir, or on a
// signal to end.
func awaitInit(dir string) error {
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

// connectStdio connects this program's stdin and stdout to the first process.
func connectStdio() error {
	conn, err := dialInit()
	if err != nil {
		return err
	}
	return guest.Lend(conn, os.Stdin, os.Stdout)
}

// dialTimeout bounds how long the first process may take to listen: it may just have been started.
const dialTimeout = 10 * time.Second

// dialInit connects to the first process.
func dialInit() (*net.UnixConn, error) {
	deadline := time.Now().Add(dialTimeout)
	for delay := time.Millisecond; ; delay = min(2*delay, 100*time.Millisecond) {
		conn, err := net.DialUnix("unix", nil, &socketAddress)
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(deadline) {
			return conn, err
		}
		time.Sleep(delay)
	}
}
