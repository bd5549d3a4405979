package docker

import (
	"context"
	"encoding/binary"
	"errors"
	"io"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll/machine/guest"
)

// readLogs reads the part of a container's log that the options select.
func (p *Provider) readLogs(ctx context.Context, container string, opts client.ContainerLogsOptions) (stdout, stderr *guest.Tail, err error) {
	opts.ShowStdout, opts.ShowStderr = true, true
	r, err := p.engine.ContainerLogs(ctx, container, opts)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	stdout, stderr = &guest.Tail{}, &guest.Tail{}
	for {
		var header [8]byte // of each line: its output and length
		if _, err := io.ReadFull(r, header[:]); errors.Is(err, io.EOF) {
			return stdout, stderr, nil
		} else if err != nil {
			return nil, nil, err
		}
		line := make([]byte, binary.BigEndian.Uint32(header[4:]))
		if _, err := io.ReadFull(r, line); err != nil {
			return nil, nil, err
		}
		if header[0] == 1 {
			stdout.Add(line)
		} else {
			stderr.Add(line)
		}
	}
}

// readReport returns the guest's report if it is the last line of the container's log. The
// report may be in either output.
func (p *Provider) readReport(ctx context.Context, container string) (guest.Report, error) {
	stdout, stderr, err := p.readLogs(ctx, container, client.ContainerLogsOptions{Tail: "1"})
	if err != nil {
		return guest.Report{}, err
	}
	if stdout.Report() != (guest.Report{}) {
		return stdout.Report(), nil
	}
	return stderr.Report(), nil
}
