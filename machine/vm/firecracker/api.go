package firecracker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
)

// A client calls Firecracker's API: the dozen requests that machines need, over a socket. The SDK
// for Go would bring forty modules.
type client struct{ http *http.Client }

func newClient(dial func(context.Context) (net.Conn, error)) *client {
	return &client{&http.Client{Transport: &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConns:    1,
		MaxConnsPerHost: 1, // Firecracker answers one request after the other
	}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// An apiError is an answer of Firecracker that is not a success.
type apiError struct {
	request string
	status  int
	message string
}

func (f *apiError) Error() string {
	return fmt.Sprintf("firecracker answers %d to %s: %s", f.status, f.request, f.message)
}

// maxAnswer bounds the bytes that a client reads of an answer.
const maxAnswer = 1 << 20

// sendRequest sends body as JSON unless it is nil, and decodes the answer into answer unless that
// is nil.
func (c *client) sendRequest(ctx context.Context, method, path string, body, answer any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://firecracker"+path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
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
		f := &apiError{request: method + " " + path, status: res.StatusCode}
		var said struct {
			Message string `json:"fault_message"`
		}
		if json.Unmarshal(text, &said) != nil || said.Message == "" {
			said.Message = fmt.Sprintf("%q", text)
		}
		f.message = said.Message
		return f
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// The bodies of requests, with the field names of Firecracker's API.
type (
	bootSource struct {
		Kernel string `json:"kernel_image_path"`
		Initrd string `json:"initrd_path,omitempty"`
		Args   string `json:"boot_args"`
	}
	machineConfig struct {
		CPUs   int `json:"vcpu_count"`
		Memory int `json:"mem_size_mib"`
	}
	drive struct {
		ID       string `json:"drive_id"`
		Path     string `json:"path_on_host"`
		Root     bool   `json:"is_root_device"`
		ReadOnly bool   `json:"is_read_only"`
	}
	vsock struct {
		CID  uint32 `json:"guest_cid"`
		Path string `json:"uds_path"`
	}
	entropy struct{}
	action  struct {
		Type string `json:"action_type"`
	}
	state struct {
		State string `json:"state"`
	}
	snapshotCreate struct {
		Type   string `json:"snapshot_type"`
		State  string `json:"snapshot_path"`
		Memory string `json:"mem_file_path"`
	}
	snapshotLoad struct {
		State  string  `json:"snapshot_path"`
		Memory backend `json:"mem_backend"`
		Resume bool    `json:"resume_vm"`
	}
	backend struct {
		Type string `json:"backend_type"`
		Path string `json:"backend_path"`
	}
	instance struct {
		State   string `json:"state"`
		Version string `json:"vmm_version"`
	}
)
