package tools

import (
	"context"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
)

type portInput struct {
	Port int `json:"port" jsonschema:"the port on which a server in the sandbox listens"`
}

type portOutput struct {
	Port int    `json:"port"`
	URL  string `json:"url" jsonschema:"the address for the user"`
	note
}

func portTools() []*Tool {
	return []*Tool{newTool(Tool{
		Name: "sandbox_port", Title: "Show a port", Idempotent: true,
		Description: "Return a URL with which the user reaches a server in the sandbox, such as one that sandbox_exec started in the background. " +
			"Give the user the whole URL: it may contain a key, which expires.",
	}, showPort).refineInput(func(p map[string]*jsonschema.Schema) {
		p["port"].Minimum, p["port"].Maximum = jsonschema.Ptr(1.0), jsonschema.Ptr(65535.0)
	})}
}

func showPort(ctx context.Context, c *call, in portInput) (out portOutput, err error) {
	if in.Port < 1 || in.Port > 65535 {
		return out, refusalErrorf(atoll.ErrInvalid, "port %d: must be from 1 to 65535", in.Port)
	}
	out.Port = in.Port
	var after string
	said, err := c.withSandbox(ctx, func(d *sandboxState) error {
		conn, err := atoll.Dial(ctx, d.sandbox, in.Port)
		switch {
		case err == nil:
			conn.Close()
		case atoll.KindOf(err) == atoll.ErrUnavailable:
			after = "Nothing listens on that port yet: start a server by sandbox_exec with background."
		default:
			return err
		}
		out.URL, err = c.k.opts.URL(ctx, d.sandbox, in.Port)
		return err
	})
	out.addNote(said)
	if err == nil && after != "" {
		out.addNote(after)
	}
	return out, err
}
