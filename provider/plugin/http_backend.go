package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
)

const (
	maxBackendReply = 1 << 20  // bytes of an answer in JSON
	stdinChunk      = 64 << 10 // bytes of a request with input

	answerTimeout = 10 * time.Second // for the answers with the outputs of an ended process to begin
)

// An httpBackend is the Backend of a program that serves only the routes of a backend.
type httpBackend struct {
	client *http.Client
	ctx    context.Context // of output and waits; ends with closeConnections
	cancel context.CancelFunc
}

// openBackend returns the provider of a program whose reply says that it is a backend.
func openBackend(ctx context.Context, program *Program, log *slog.Logger) (atoll.Provider, *httpBackend, error) {
	b := &httpBackend{client: program.HTTPClient()}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	var info atoll.Info
	err := b.callRoute(ctx, "info", "", http.MethodGet, "/v1/info", nil, &info)
	if err == nil && info.Caps.TTY {
		err = atoll.Errorf("open", info.Name, atoll.ErrInvalid, "cap tty: a backend over HTTP cannot have it: serve the whole API")
	}
	var p atoll.Provider
	if err == nil {
		p, err = NewProvider(info, b, log)
	}
	if err != nil {
		b.closeConnections()
		return nil, nil, err
	}
	return p, b, nil
}

// closeConnections ends all requests.
func (b *httpBackend) closeConnections() {
	b.cancel()
	b.client.CloseIdleConnections()
}

// sendRequest sends a request. The caller closes the body of the answer, which is a success.
func (b *httpBackend) sendRequest(ctx context.Context, op, id, method, path, media string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://plugin"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, atoll.E(op, id, atoll.ErrUnavailable, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBackendReply))
	if err != nil {
		return nil, atoll.E(op, id, atoll.ErrUnavailable, err)
	}
	return nil, api.UnmarshalError(text, op, id)
}

// callRoute sends body as JSON, and decodes the answer into reply. Either may be nil.
func (b *httpBackend) callRoute(ctx context.Context, op, id, method, path string, body, reply any) error {
	var data []byte
	media := ""
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return atoll.E(op, id, atoll.ErrInvalid, err)
		}
		media = "application/json"
	}
	resp, err := b.sendRequest(ctx, op, id, method, path, media, data)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBackendReply))
	if err == nil && reply != nil {
		err = json.Unmarshal(text, reply)
	}
	if err != nil {
		return atoll.Errorf(op, id, atoll.ErrUnavailable, "the answer to %s %s: %w", method, path, err)
	}
	return nil
}

// sandboxPath returns the path of a sandbox.
func sandboxPath(id string) string { return "/v1/sandboxes/" + id }

// CreateSandbox implements Backend. It does not end with ctx: the program may have created the sandbox.
func (b *httpBackend) CreateSandbox(ctx context.Context, spec *atoll.Spec) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	return b.callRoute(ctx, "create", spec.ID, http.MethodPost, "/v1/sandboxes", spec, nil)
}

// StopSandbox implements Backend.
func (b *httpBackend) StopSandbox(ctx context.Context, id string) error {
	err := b.callRoute(ctx, "stop", id, http.MethodPost, sandboxPath(id)+"/stop", nil, nil)
	return ignoreMissing(err)
}

// RemoveSandbox implements Backend.
func (b *httpBackend) RemoveSandbox(ctx context.Context, id string) error {
	err := b.callRoute(ctx, "remove", id, http.MethodDelete, sandboxPath(id), nil, nil)
	return ignoreMissing(err)
}

// ignoreMissing returns nil if err says that the sandbox does not exist.
func ignoreMissing(err error) error {
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}

// StartProcess implements Backend. It owns the files of stdio if it succeeds.
func (b *httpBackend) StartProcess(ctx context.Context, spec *atoll.Spec, cmd *atoll.Command, stdio Stdio) (Process, error) {
	if text := strings.Join(append(append([]string{cmd.Dir, cmd.User}, cmd.Args...), cmd.Env...), " "); !utf8.ValidString(text) {
		return nil, atoll.Errorf("exec", spec.ID, atoll.ErrInvalid, "command: must be UTF-8 to go over the wire")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	path := sandboxPath(spec.ID) + "/processes"
	var started struct {
		ID string `json:"id"`
	}
	if err := b.callRoute(ctx, "exec", spec.ID, http.MethodPost, path, cmd, &started); err != nil {
		return nil, err
	}
	p := &httpProcess{backend: b, sandbox: spec.ID, path: path + "/" + url.PathEscape(started.ID), answers: make(chan struct{}, 2)}
	p.ctx, p.cancel = context.WithCancel(b.ctx)
	go p.copyOutput(atoll.Stdout, stdio.Stdout)
	go p.copyOutput(atoll.Stderr, stdio.Stderr)
	go p.copyInput(stdio.Stdin, cmd.OpenStdin)
	return p, nil
}

// An httpProcess is a process of an httpBackend.
type httpProcess struct {
	backend *httpBackend
	sandbox string // its id
	path    string
	ctx     context.Context // of the input; ends with the process
	cancel  context.CancelFunc
	answers chan struct{} // receives a value when the answer with an output begins, or fails
}

// copyOutput copies a stream to w until it ends, and closes w.
func (p *httpProcess) copyOutput(stream atoll.Stream, w io.WriteCloser) {
	defer w.Close()
	path := p.path + "/output?follow=true&stream=" + string(stream)
	resp, err := p.backend.sendRequest(p.backend.ctx, "attach", p.sandbox, http.MethodGet, path, "", nil)
	p.answers <- struct{}{}
	if err != nil {
		return // Wait reports that the program does not answer
	}
	defer resp.Body.Close()
	_, _ = io.Copy(w, resp.Body) // as above
}

// copyInput copies r to the process until r or the process ends, and closes r. It does nothing else if
// the process has no input.
func (p *httpProcess) copyInput(r io.ReadCloser, open bool) {
	defer r.Close()
	buf := make([]byte, stdinChunk)
	for open {
		n, err := r.Read(buf)
		path := p.path + "/stdin"
		if err != nil {
			path += "?close=true"
			open = false
		}
		resp, err := p.backend.sendRequest(p.ctx, "attach", p.sandbox, http.MethodPost, path, "application/octet-stream", buf[:n])
		if err != nil {
			return // the process has ended, or has closed its input
		}
		resp.Body.Close()
	}
}

// Wait implements Process.
func (p *httpProcess) Wait() atoll.Exit {
	defer p.cancel()
	var exit atoll.Exit
	if err := p.backend.callRoute(p.backend.ctx, "wait", p.sandbox, http.MethodGet, p.path+"/wait", nil, &exit); err != nil {
		return atoll.Exit{Code: -1, Reason: err.Error()}
	}
	late := time.After(answerTimeout)
	for range cap(p.answers) { // a busy program may answer this request before those for the outputs
		select {
		case <-p.answers:
		case <-late:
			return exit
		}
	}
	return exit
}

// Signal implements Process.
func (p *httpProcess) Signal(sig atoll.Signal) error {
	ctx, cancel := context.WithTimeout(p.backend.ctx, endTimeout)
	defer cancel()
	body := struct {
		Signal atoll.Signal `json:"signal"`
	}{sig}
	err := p.backend.callRoute(ctx, "signal", p.sandbox, http.MethodPost, p.path+"/signal", body, nil)
	if errors.Is(ignoreMissing(err), atoll.ErrNotExist) {
		return atoll.ErrStopped
	}
	return err
}

var _ Backend = (*httpBackend)(nil)
