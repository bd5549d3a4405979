package vz

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
)

// A client asks vfkit's REST service.
type client struct{ http *http.Client }

func newClient(socket string) *client {
	return &client{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns: 1,
	}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// What a machine can be.
const (
	running = "VirtualMachineStateRunning"
	failed  = "VirtualMachineStateError"
)

// What can be asked of one.
const (
	toPause  = "Pause"
	toResume = "Resume"
	toStop   = "Stop" // as the button does
)

// state is in both directions: what a machine is, and what it is to become.
type state struct {
	State string `json:"state"`
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 10

// now returns what the machine is.
func (c *client) now(ctx context.Context) (string, error) {
	var s state
	err := c.do(ctx, http.MethodGet, nil, &s)
	return s.State, err
}

// become asks the machine to.
func (c *client) become(ctx context.Context, what string) error {
	body, err := json.Marshal(state{what})
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, bytes.NewReader(body), nil)
}

func (c *client) do(ctx context.Context, method string, body io.Reader, answer *state) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://vfkit/vm/state", body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		var said struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(text, &said) != nil || said.Error == "" {
			said.Error = fmt.Sprintf("%q", text)
		}
		return fmt.Errorf("vfkit answers %d: %s", res.StatusCode, said.Error)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}
