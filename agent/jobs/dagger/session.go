package dagger

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"dagger.io/dagger"
	"dagger.io/dagger/engineconn"

	"github.com/seed46cd37a8/atoll"
)

// A session is a client, and what it reaches the engine by.
type session struct {
	client *dagger.Client
	by     string       // for people
	said   func() error // what the CLI has said of its troubles, nil if nothing
}

func (s *session) close() { _ = s.client.Close() } // what it ran has ended

// The variables that Dagger's programs agree on.
const (
	portVar   = "DAGGER_SESSION_PORT"
	tokenVar  = "DAGGER_SESSION_TOKEN"
	cliVar    = "_EXPERIMENTAL_DAGGER_CLI_BIN"
	engineVar = "_EXPERIMENTAL_DAGGER_RUNNER_HOST"
)

// connect opens a session. It blocks until the engine answers. Kinds: ErrUnavailable.
func (b *Backend) connect(ctx context.Context) (*session, error) {
	s, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.fits(ctx, b.opts.Patience); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// fits asks the engine what its machine is, for so long at most: the guest's program is to
// run there, and by an emulator it has no filter of system calls.
func (s *session) fits(ctx context.Context, patience time.Duration) error {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	is, err := s.client.DefaultPlatform(patient)
	if err != nil {
		if ctx.Err() == nil && patient.Err() != nil { // a limit of ours, and not the caller's
			err = fmt.Errorf("it has not after %s", patience)
		}
		return unavailable("the engine does not answer: %w", with(err, s.said()))
	}
	if !strings.HasPrefix(string(is)+"/", string(platform)+"/") { // a variant may follow
		return unavailable("the engine is on %s, and this machine, whose guest is to run there, is %s: use an engine on a machine like this one", is, platform)
	}
	return nil
}

// open is connect without a word from the engine.
func (b *Backend) open(ctx context.Context) (*session, error) {
	if b.inSession() {
		c, err := outer()
		if err != nil {
			return nil, err
		}
		return newSession(ctx, c, "the session that this program is in", func() error { return nil })
	}
	cli, err := b.cli()
	if err != nil {
		return nil, err
	}
	c, err := start(ctx, cli, b.opts.Engine, b.opts.Patience)
	if err != nil {
		return nil, err
	}
	return newSession(ctx, c, cli, c.stderr.err)
}

// inSession reports whether the session is used that this program was started in.
func (b *Backend) inSession() bool {
	return b.opts.CLI == "" && b.opts.Engine == "" && os.Getenv(portVar) != ""
}

// startsEngine reports whether the CLI starts an engine for itself: where it is named by
// none but an image, as it is when nobody has named one.
func (b *Backend) startsEngine() bool {
	scheme := b.scheme()
	return !b.inSession() && (scheme == "" || strings.Contains(scheme, "image"))
}

// scheme is that of the engine's URL, "" if it has none.
func (b *Backend) scheme() string {
	scheme, _, _ := strings.Cut(cmp.Or(b.opts.Engine, os.Getenv(engineVar)), "://")
	return scheme
}

// canStart is an error if the CLI has nothing to start an engine with. Old ones know
// docker alone, which is not to be told from here.
func (b *Backend) canStart() error {
	engines := []string{"docker", "podman", "nerdctl", "finch", "container"}
	if b.scheme() == "docker-image" {
		engines = engines[:1]
	}
	for _, name := range engines {
		if _, err := exec.LookPath(name); err == nil {
			return nil
		}
	}
	return unavailable("dagger.engine names no engine that runs, and PATH has nothing that the CLI starts one with, like docker")
}

func newSession(ctx context.Context, c engineconn.EngineConn, by string, said func() error) (*session, error) {
	client, err := dagger.Connect(ctx, dagger.WithConn(c))
	if err != nil {
		return nil, errors.Join(unavailable("%w", err), c.Close())
	}
	return &session{client, by, said}, nil
}

// cli finds the CLI. The SDK would fetch one that it does not find.
func (b *Backend) cli() (string, error) {
	name := cmp.Or(b.opts.CLI, os.Getenv(cliVar), "dagger")
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	if name != "dagger" {
		return "", unavailable("no CLI: %w", err)
	}
	return "", unavailable("there is no session (%s), and no CLI: install Dagger's, or set dagger.cli to its path", portVar)
}

func unavailable(format string, args ...any) error {
	return atoll.Errorf("run", "", atoll.ErrUnavailable, "dagger: "+format, args...)
}

// A conn is the way into a session, at a port of this machine.
type conn struct {
	transport *http.Transport
	token     string
}

func newConn(params engineconn.ConnectParams) *conn {
	return &conn{&http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", params.Port))
	}}, params.SessionToken}
}

// outer leads into the session that this program was started in.
func outer() (*conn, error) {
	port, err := strconv.ParseUint(os.Getenv(portVar), 10, 16)
	if err != nil {
		return nil, unavailable("%s: %w", portVar, err)
	}
	token := os.Getenv(tokenVar)
	if token == "" {
		return nil, unavailable("%s is set, and %s is not: set both, as dagger run does, or none", portVar, tokenVar)
	}
	return newConn(engineconn.ConnectParams{Port: int(port), SessionToken: token}), nil
}

// Do implements engineconn.EngineConn.
func (c *conn) Do(r *http.Request) (*http.Response, error) {
	r.SetBasicAuth(c.token, "")
	return c.transport.RoundTrip(r)
}

// Host implements engineconn.EngineConn.
func (c *conn) Host() string { return "dagger" }

// Close implements engineconn.EngineConn. The session stays.
func (c *conn) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

// A child is a session that a CLI of ours has, and the way into it. It is not left to the
// SDK, which finds a CLI by this program's environment alone, and waits for one that does
// not answer for minutes.
type child struct {
	*conn  // nil until it is connected
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout firstLine
	stderr printed
	ended  chan struct{}
}

const (
	endTime = 15 * time.Second // how long a CLI may take to end its session
	drain   = 2 * time.Second  // and what it has printed to arrive, once it has ended: what it has started may hold the other end
)

// start starts a CLI, and waits until it is connected to the engine.
func start(ctx context.Context, cli, engine string, patience time.Duration) (*child, error) {
	c := &child{cmd: exec.Command(cli, "session", "--label", "dagger.io/sdk.name:go"), ended: make(chan struct{})}
	c.cmd.Env = slices.DeleteFunc(os.Environ(), ofSession) // it would not have one of its own
	c.cmd.Env = append(c.cmd.Env, "DO_NOT_TRACK=1", "DAGGER_NO_NAG=1", "NO_COLOR=1")
	if engine != "" {
		c.cmd.Env = append(c.cmd.Env, engineVar+"="+engine)
	}
	c.stdout.whole = make(chan struct{})
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.WaitDelay = &c.stdout, &c.stderr, drain
	stdin, err := c.cmd.StdinPipe() // it ends its session when this is closed, and so when we are killed
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	started := make(chan error)
	go c.run(started)
	if err := <-started; err != nil {
		return nil, unavailable("%w", err)
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	params, err := c.connected(patient)
	if err != nil {
		_ = c.Close()
		if ctx.Err() == nil && patient.Err() != nil { // a limit of ours, and not the caller's
			err = fmt.Errorf("it is not connected after %s", patience)
		}
		return nil, unavailable("%s has no session: %w", cli, with(err, c.stderr.err()))
	}
	c.conn = newConn(params)
	return c, nil
}

// ofSession reports whether a variable says which session a program is in.
func ofSession(kv string) bool { return strings.HasPrefix(kv, "DAGGER_SESSION_") }

// run starts the CLI and waits for it on one thread, with whose end some systems end it.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	alone(c.cmd)
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = c.cmd.Wait() // what came of the session, others know
	close(c.ended)
}

// connected is what the CLI prints when it is connected.
func (c *child) connected(ctx context.Context) (params engineconn.ConnectParams, err error) {
	select {
	case <-c.stdout.whole:
	case <-c.ended:
	case <-ctx.Done():
		return params, ctx.Err()
	}
	line := c.stdout.bytes()
	if len(line) == 0 {
		return params, errors.New("it has ended")
	}
	return params, json.Unmarshal(line, &params)
}

// with is err, and what the CLI has said to it, which may be nil.
func with(err, said error) error {
	if said == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, said)
}

// A firstLine is what is printed before the first end of line, after which whole is closed.
type firstLine struct {
	whole chan struct{}

	mu   sync.Mutex
	text []byte
	done bool
}

// maxLine is how much is kept of it: more it cannot be.
const maxLine = 64 << 10

// Write implements io.Writer, and never fails.
func (l *firstLine) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		line, _, ended := bytes.Cut(b, []byte("\n"))
		l.text = append(l.text, line[:min(len(line), maxLine-len(l.text))]...)
		if ended {
			l.done = true
			close(l.whole)
		}
	}
	return len(b), nil
}

func (l *firstLine) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.text)
}

// printed is the end of what a CLI has said.
type printed struct {
	mu   sync.Mutex
	tail atoll.Tail
}

// maxPrinted is how much of it is of use.
const maxPrinted = 4 << 10

// Write implements io.Writer, and never fails.
func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tail.Limit = maxPrinted
	return p.tail.Write(b)
}

// err is that, nil if it is nothing.
func (p *printed) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := strings.TrimSpace(strings.ToValidUTF8(string(p.tail.Bytes()), "")); text != "" {
		return errors.New(text)
	}
	return nil
}

// Close implements engineconn.EngineConn. It ends the session, and what runs in it.
func (c *child) Close() error {
	_ = c.stdin.Close()
	if c.conn == nil { // a CLI that is not connected goes on trying, for minutes
		kill(c.cmd.Process)
		<-c.ended
		return nil
	}
	_ = c.conn.Close()
	select {
	case <-c.ended:
	case <-time.After(endTime):
		kill(c.cmd.Process)
		<-c.ended
	}
	return nil
}

var (
	_ engineconn.EngineConn = (*conn)(nil)
	_ engineconn.EngineConn = (*child)(nil)
)
