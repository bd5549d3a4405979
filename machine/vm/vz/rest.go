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

// A client calls vfkit's REST service.
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

// The states of a machine.
const (
	stateRunning = "VirtualMachineStateRunning"
	stateFailed  = "VirtualMachineStateError"
)

// The changes of state to ask for.
const (
	toPause  = "Pause"
	toResume = "Resume"
	toStop   = "Stop" // like the power button
)

// state is the body in both directions: the machine's state, and the requested change.
type state struct {
	State string `json:"state"`
}

// maxAnswer bounds the bytes that a client reads of an answer.
const maxAnswer = 64 << 10

// currentState returns the state of the machine.
func (c *client) currentState(ctx context.Context) (string, error) {
	var s state
	err := c.sendRequest(ctx, http.MethodGet, nil, &s)
	return s.State, err
}

// requestState asks for a change of the machine's state.
func (c *client) requestState(ctx context.Context, what string) error {
	body, err := json.Marshal(state{what})
	if err != nil {
		return err
	}
	return c.sendRequest(ctx, http.MethodPost, bytes.NewReader(body), nil)
}

func (c *client) sendRequest(ctx context.Context, method string, body io.Reader, answer *state) error {
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
