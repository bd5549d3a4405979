package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/program"
	"github.com/seed46cd37a8/atoll/server/api"
)

const (
	startTimeout = 2 * time.Minute  // how long a program may take to listen
	endTimeout   = 15 * time.Second // how long it may take to end once its stdin has ended
	// outputTimeout bounds the reading of a program's output after its end: a program that it
	// has started may have the same stderr.
	outputTimeout = time.Second
	maxReply      = 1 << 20 // bytes of the line that it answers
	maxSocket     = 60      // bytes of the path of a socket's directory's parent: some systems allow 104 for the socket
)

// Options say which program to run, and with which settings.
type Options struct {
	Name      string // of the plugin
	Path      string // of its program; empty means program.Find(Name)
	StateDir  string
	Settings  json.RawMessage
	Probing   bool
	Guest     string          // path of the guest's program; empty means the one that the plugin has
	Resources atoll.Resources // of sandboxes that ask for none
	Place     bool            // the provider's Place is wanted
	Log       *slog.Logger    // gets the lines of stderr, records of slog in JSON with their levels; nil discards them
}

// A Program is a plugin's program. It is started by the first Dial, and again by the next one
// after it has ended.
type Program struct {
	opts Options
	turn chan struct{} // holds a token while somebody starts or ends the program

	// Guarded by turn.
	run    *run // nil while it does not run
	closed bool
}

// NewProgram returns a Program that is not started yet.
func NewProgram(opts Options) *Program {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Program{opts: opts, turn: make(chan struct{}, 1)}
}

// Dial connects to the program, which it starts if it does not run. Kinds: ErrUnavailable (it
// is not there, or does not speak the protocol), and those of the program's own answer.
func (p *Program) Dial(ctx context.Context) (net.Conn, error) {
	r, err := p.ensureRunning(ctx)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", r.socket)
}

// ensureRunning returns the run of the program, which it starts if there is none.
func (p *Program) ensureRunning(ctx context.Context) (*run, error) {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.turn }()
	if p.closed {
		return nil, atoll.Errorf("open", p.opts.Name, atoll.ErrUnavailable, "the provider is closed")
	}
	if p.run != nil && !p.run.hasEnded() {
		return p.run, nil
	}
	if p.run != nil {
		p.opts.Log.Warn("the program has ended, start it again", "program", "atoll-"+p.opts.Name, "exit", p.run.describeExit())
		p.run.removeSocket()
		p.run = nil
	}
	r, err := startProgram(ctx, p.opts)
	if err != nil {
		return nil, err
	}
	p.run = r
	return r, nil
}

// Close ends the program and waits until it has ended. A second call does nothing.
func (p *Program) Close() error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.closed = true
	if p.run == nil {
		return nil
	}
	err := p.run.stopProcess()
	p.run = nil
	return err
}

// A run is one process of a Program.
type run struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.Closer
	dir     string // of the socket
	socket  string
	stderr  *lastLine
	place   string        // as the program answered
	backend bool          // as the program answered
	done    chan struct{} // closed when the process has ended
	err     error         // how; to be read after done
}

// startProgram runs the program until it listens.
func startProgram(ctx context.Context, opts Options) (*run, error) {
	path := opts.Path
	if path == "" {
		var err error
		if path, err = program.Find(opts.Name); err != nil {
			return nil, err
		}
	}
	dir, err := socketDir(opts.StateDir)
	if err != nil {
		return nil, atoll.E("open", opts.Name, atoll.ErrUnavailable, err)
	}
	r := &run{name: opts.Name, dir: dir, socket: filepath.Join(dir, "s"), stderr: &lastLine{log: opts.Log}, done: make(chan struct{})}
	answer, err := r.startProcess(path, opts)
	if err != nil {
		r.removeSocket()
		return nil, atoll.E("open", opts.Name, atoll.ErrUnavailable, err)
	}
	if err := r.awaitReply(ctx, answer); err != nil {
		_ = r.stopProcess() // the reason is err
		return nil, err
	}
	return r, nil
}

// socketDir makes a directory for a socket that only this user can enter: among temporary files
// or, if that is not possible, in the state directory.
func socketDir(stateDir string) (string, error) {
	var errs []error
	for _, parent := range []string{os.TempDir(), "/tmp", stateDir} {
		if parent == "" || len(parent) > maxSocket {
			continue
		}
		dir, err := os.MkdirTemp(parent, "atoll-plugin-")
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no directory for a socket: %w", errors.Join(errs...))
}

// startProcess starts the process, and returns what it writes to its stdout.
func (r *run) startProcess(path string, opts Options) (io.Reader, error) {
	line, err := json.Marshal(Start{Protocol: Protocol, Socket: r.socket, StateDir: opts.StateDir, Settings: opts.Settings, Probing: opts.Probing, Guest: opts.Guest, Resources: opts.Resources, Place: opts.Place, Debug: opts.Log.Enabled(context.Background(), slog.LevelDebug)})
	if err != nil {
		return nil, err
	}
	r.cmd = exec.Command(path, Argument)
	r.cmd.SysProcAttr = ownGroup() // ^C is for atoll, which then ends it
	r.cmd.Stderr = r.stderr
	r.cmd.WaitDelay = outputTimeout
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	r.stdin = stdin
	go func() { // it may be longer than what a pipe takes
		_, _ = stdin.Write(append(line, '\n')) // a program that does not read it does not answer either
	}()
	return stdout, nil
}

// awaitReply waits for the program's line, and then for the process in the background.
func (r *run) awaitReply(ctx context.Context, stdout io.Reader) error {
	lines := make(chan []byte, 1)
	go func() {
		buffered := bufio.NewReader(io.LimitReader(stdout, maxReply))
		line, _ := buffered.ReadBytes('\n')
		lines <- line
		go func() { _, _ = io.Copy(io.Discard, stdout) }() // until Wait closes it
		r.err = r.cmd.Wait()
		close(r.done)
	}()
	late := time.NewTimer(startTimeout)
	defer late.Stop()
	select {
	case line := <-lines:
		return r.readReply(line)
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return atoll.Errorf("open", r.name, atoll.ErrUnavailable, "%s did not say within %s that it listens", r.cmd.Path, startTimeout)
	}
}

// readReply reads the program's reply.
func (r *run) readReply(line []byte) error {
	var reply Reply
	if err := json.Unmarshal(line, &reply); err != nil {
		if len(bytes.TrimSpace(line)) > 0 {
			return atoll.Errorf("open", r.name, atoll.ErrUnavailable, "%s answered %.200q instead of a line of JSON", r.cmd.Path, line)
		}
		select {
		case <-r.done:
		case <-time.After(endTimeout):
		}
		return atoll.Errorf("open", r.name, atoll.ErrUnavailable, "%s ended before it listened: %s", r.cmd.Path, r.describeExit())
	}
	if len(reply.Error) > 0 {
		return api.UnmarshalError(reply.Error, "open", r.name)
	}
	if reply.Protocol != Protocol {
		return atoll.Errorf("open", r.name, atoll.ErrUnavailable, "%s speaks version %d of the protocol, this atoll version %d: install those that belong together", r.cmd.Path, reply.Protocol, Protocol)
	}
	r.place, r.backend = reply.Place, reply.Backend
	return nil
}

// hasEnded reports whether the process has ended.
func (r *run) hasEnded() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// describeExit says how the process ended, and what it said last.
func (r *run) describeExit() string {
	text := "it still runs"
	if r.hasEnded() {
		text = "exit status 0"
		if r.err != nil {
			text = r.err.Error()
		}
	}
	if last := r.stderr.lastText(); last != "" {
		text += ": " + last
	}
	return text
}

// stopProcess ends the process by the end of its stdin, and kills it if it takes too long.
func (r *run) stopProcess() error {
	defer r.removeSocket()
	_ = r.stdin.Close()
	select {
	case <-r.done:
	case <-time.After(endTimeout):
		_ = r.cmd.Process.Kill()
		<-r.done
		return atoll.Errorf("close", r.name, atoll.ErrTimeout, "%s did not end within %s and was killed", r.cmd.Path, endTimeout)
	}
	var exit *exec.ExitError
	if r.err != nil && !errors.As(r.err, &exit) && !errors.Is(r.err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %w", r.cmd.Path, r.err)
	}
	return nil
}

// removeSocket removes the socket, should the program have left it.
func (r *run) removeSocket() {
	_ = os.Remove(r.socket)
	_ = os.Remove(r.dir)
}

// A lastLine passes the lines of a program's stderr on to a log, and remembers the last one.
type lastLine struct {
	log *slog.Logger

	mu   sync.Mutex
	part []byte
	last string
}

// Write implements io.Writer.
func (l *lastLine) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, b...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			break
		}
		l.logLine(string(line))
		l.part = rest
	}
	if len(l.part) > maxReply {
		l.logLine(string(l.part))
		l.part = nil
	}
	return len(b), nil
}

// logLine logs a line; l.mu is held. A record of package slog in JSON keeps its level.
func (l *lastLine) logLine(line string) {
	if line = strings.TrimSpace(line); line == "" {
		return
	}
	message, level, attrs := parseRecord(line)
	l.last = message
	l.log.Log(context.Background(), level, message, attrs...)
}

// parseRecord reads a record of slog's JSONHandler. Any other line is a message of level Info.
func parseRecord(line string) (message string, level slog.Level, attrs []any) {
	var record map[string]any
	if json.Unmarshal([]byte(line), &record) != nil {
		return line, slog.LevelInfo, nil
	}
	message, ok := record[slog.MessageKey].(string)
	text, _ := record[slog.LevelKey].(string)
	if !ok || level.UnmarshalText([]byte(text)) != nil {
		return line, slog.LevelInfo, nil
	}
	for _, key := range slices.Sorted(maps.Keys(record)) {
		if key != slog.MessageKey && key != slog.LevelKey && key != slog.TimeKey {
			attrs = append(attrs, key, record[key])
		}
	}
	return message, level, attrs
}

// lastText returns the last line.
func (l *lastLine) lastText() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rest := strings.TrimSpace(string(l.part)); rest != "" {
		return rest
	}
	return l.last
}
