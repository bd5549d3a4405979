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

// A session is a client, and its connection to the engine.
type session struct {
	client   *dagger.Client
	connName string       // the connection's name for people
	cliError func() error // the errors that the CLI has printed, nil if none
}

func (s *session) closeClient() { _ = s.client.Close() } // its jobs have ended

// Environment variables that Dagger's programs share.
const (
	portVar   = "DAGGER_SESSION_PORT"
	tokenVar  = "DAGGER_SESSION_TOKEN"
	cliVar    = "_EXPERIMENTAL_DAGGER_CLI_BIN"
	engineVar = "_EXPERIMENTAL_DAGGER_RUNNER_HOST"
)

// connectEngine opens a session. It blocks until the engine answers. Kinds: ErrUnavailable.
func (b *Backend) connectEngine(ctx context.Context) (*session, error) {
	s, err := b.openSession(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.checkPlatform(ctx, b.opts.Patience); err != nil {
		s.closeClient()
		return nil, err
	}
	return s, nil
}

// checkPlatform asks the engine for its platform, for at most patience: the guest's
// program runs there, and under emulation it has no filter of system calls.
func (s *session) checkPlatform(ctx context.Context, patience time.Duration) error {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	is, err := s.client.DefaultPlatform(patient)
	if err != nil {
		if ctx.Err() == nil && patient.Err() != nil { // our limit, not the caller's
			err = fmt.Errorf("timed out after %s", patience)
		}
		return unavailableErrorf("the engine does not answer: %w", withOutput(err, s.cliError()))
	}
	if !strings.HasPrefix(string(is)+"/", string(platform)+"/") { // a variant may follow
		return unavailableErrorf("the engine runs on %s, and the guest's program is for %s: use an engine on the platform of this machine", is, platform)
	}
	return nil
}

// openSession is connect without a request to the engine.
func (b *Backend) openSession(ctx context.Context) (*session, error) {
	if b.inSession() {
		c, err := outerSession()
		if err != nil {
			return nil, err
		}
		return newSession(ctx, c, "the session that this program is in", func() error { return nil })
	}
	cli, err := b.findCLI()
	if err != nil {
		return nil, err
	}
	c, err := startCLI(ctx, cli, b.opts.Engine, b.opts.Patience)
	if err != nil {
		return nil, err
	}
	return newSession(ctx, c, cli, c.stderr.outputError)
}

// inSession reports whether jobs use the session in which this program was started.
func (b *Backend) inSession() bool {
	return b.opts.CLI == "" && b.opts.Engine == "" && os.Getenv(portVar) != ""
}

// startsEngine reports whether the CLI starts an engine itself: if no engine is
// configured, or only an image.
func (b *Backend) startsEngine() bool {
	scheme := b.engineScheme()
	return !b.inSession() && (scheme == "" || strings.Contains(scheme, "image"))
}

// engineScheme returns the scheme of the engine's URL, "" if it has none.
func (b *Backend) engineScheme() string {
	scheme, _, _ := strings.Cut(cmp.Or(b.opts.Engine, os.Getenv(engineVar)), "://")
	return scheme
}

// canStart returns an error if the CLI lacks a program to start an engine with. Old
// CLIs only support docker, but canStart cannot tell their version.
func (b *Backend) canStart() error {
	engines := []string{"docker", "podman", "nerdctl", "finch", "container"}
	if b.engineScheme() == "docker-image" {
		engines = engines[:1]
	}
	for _, name := range engines {
		if _, err := exec.LookPath(name); err == nil {
			return nil
		}
	}
	return unavailableErrorf("dagger.engine names no running engine, and PATH has no program to start one with, such as docker")
}

func newSession(ctx context.Context, c engineconn.EngineConn, by string, said func() error) (*session, error) {
	client, err := dagger.Connect(ctx, dagger.WithConn(c))
	if err != nil {
		return nil, errors.Join(unavailableErrorf("%w", err), c.Close())
	}
	return &session{client, by, said}, nil
}

// findCLI returns the path of the CLI. The SDK would download a missing one.
func (b *Backend) findCLI() (string, error) {
	name := cmp.Or(b.opts.CLI, os.Getenv(cliVar), "dagger")
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	if name != "dagger" {
		return "", unavailableErrorf("no CLI: %w", err)
	}
	return "", unavailableErrorf("no session (%s) and no CLI: install Dagger's CLI, or set dagger.cli to its path", portVar)
}

func unavailableErrorf(format string, args ...any) error {
	return atoll.Errorf("run", "", atoll.ErrUnavailable, "dagger: "+format, args...)
}

// A conn is a connection to a session at a port of this machine.
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

// outerSession connects to the session in which this program was started.
func outerSession() (*conn, error) {
	port, err := strconv.ParseUint(os.Getenv(portVar), 10, 16)
	if err != nil {
		return nil, unavailableErrorf("%s: %w", portVar, err)
	}
	token := os.Getenv(tokenVar)
	if token == "" {
		return nil, unavailableErrorf("%s is set, but %s is not: set both, as dagger run does, or none", portVar, tokenVar)
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

// Close implements engineconn.EngineConn. The session continues.
func (c *conn) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

// A child is a CLI process with its session, and the connection to it. The SDK could
// start the CLI, but finds it by environment variables only, and waits minutes for one
// that doesn't answer.
type child struct {
	*conn  // nil before it is connected
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout firstLine
	stderr lastOutput
	ended  chan struct{}
}

const (
	endTime = 15 * time.Second // time for a CLI to end its session
	drain   = 2 * time.Second  // time for its output to arrive after its end, since its children may hold the other end
)

// startCLI starts a CLI, and waits until it is connected to the engine.
func startCLI(ctx context.Context, cli, engine string, patience time.Duration) (*child, error) {
	c := &child{cmd: exec.Command(cli, "session", "--label", "dagger.io/sdk.name:go"), ended: make(chan struct{})}
	c.cmd.Env = slices.DeleteFunc(os.Environ(), isSessionVar) // otherwise it would join that session
	c.cmd.Env = append(c.cmd.Env, "DO_NOT_TRACK=1", "DAGGER_NO_NAG=1", "NO_COLOR=1")
	if engine != "" {
		c.cmd.Env = append(c.cmd.Env, engineVar+"="+engine)
	}
	c.stdout.whole = make(chan struct{})
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.WaitDelay = &c.stdout, &c.stderr, drain
	stdin, err := c.cmd.StdinPipe() // closing stdin ends the CLI's session, also when we are killed
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	started := make(chan error)
	go c.runCLI(started)
	if err := <-started; err != nil {
		return nil, unavailableErrorf("%w", err)
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	params, err := c.awaitParams(patient)
	if err != nil {
		_ = c.Close()
		if ctx.Err() == nil && patient.Err() != nil { // our limit, not the caller's
			err = fmt.Errorf("not connected after %s", patience)
		}
		return nil, unavailableErrorf("%s opened no session: %w", cli, withOutput(err, c.stderr.outputError()))
	}
	c.conn = newConn(params)
	return c, nil
}

// isSessionVar reports whether a variable names the session of a program.
func isSessionVar(kv string) bool { return strings.HasPrefix(kv, "DAGGER_SESSION_") }

// runCLI starts the CLI and waits for it on one thread, since some systems kill it when
// that thread ends.
func (c *child) runCLI(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	isolateProcess(c.cmd)
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = c.cmd.Wait() // others report the outcome of the session
	close(c.ended)
}

// awaitParams returns the parameters that the CLI prints when it is connected.
func (c *child) awaitParams(ctx context.Context) (params engineconn.ConnectParams, err error) {
	select {
	case <-c.stdout.whole:
	case <-c.ended:
	case <-ctx.Done():
		return params, ctx.Err()
	}
	line := c.stdout.lineBytes()
	if len(line) == 0 {
		return params, errors.New("it has exited")
	}
	return params, json.Unmarshal(line, &params)
}

// withOutput adds the errors printed by the CLI to err; said may be nil.
func withOutput(err, said error) error {
	if said == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, said)
}

// A firstLine keeps the first line of output, and then closes whole.
type firstLine struct {
	whole chan struct{}

	mu   sync.Mutex
	text []byte
	done bool
}

// maxLine bounds the kept part of the line; a valid line is shorter.
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

func (l *firstLine) lineBytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.text)
}

// A lastOutput keeps the end of a CLI's output.
type lastOutput struct {
	mu   sync.Mutex
	tail atoll.Tail
}

// maxPrinted is the most bytes of it that are kept.
const maxPrinted = 4 << 10

// Write implements io.Writer, and never fails.
func (p *lastOutput) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tail.Limit = maxPrinted
	return p.tail.Write(b)
}

// outputError returns the output as an error, nil if there is none.
func (p *lastOutput) outputError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := strings.TrimSpace(strings.ToValidUTF8(string(p.tail.Bytes()), "")); text != "" {
		return errors.New(text)
	}
	return nil
}

// Close implements engineconn.EngineConn. It ends the session and its jobs.
func (c *child) Close() error {
	_ = c.stdin.Close()
	if c.conn == nil { // an unconnected CLI would retry for minutes
		killProcess(c.cmd.Process)
		<-c.ended
		return nil
	}
	_ = c.conn.Close()
	select {
	case <-c.ended:
	case <-time.After(endTime):
		killProcess(c.cmd.Process)
		<-c.ended
	}
	return nil
}

var (
	_ engineconn.EngineConn = (*conn)(nil)
	_ engineconn.EngineConn = (*child)(nil)
)
