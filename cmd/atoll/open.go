package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"syscall"

	"github.com/cli/browser"
	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newOpen(a *app) *cobra.Command {
	var noBrowser bool
	cmd := &cobra.Command{
		Use:   "open [flags] SANDBOX [PORT]",
		Short: "Open a port of a sandbox in the browser",
		Long: `Open forwards a local port to a port inside the sandbox, as atoll port-forward does,
and opens its address in your browser. It forwards until it is interrupted. Without
PORT, it opens the only port that --expose or -p of the sandbox names. The local port
has the same number, unless another program uses that.`,
		Example: `  atoll open web 8080
  atoll open --no-browser web 8080`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completePorts,
		RunE: func(cmd *cobra.Command, args []string) error {
			inside := 0
			if len(args) == 2 {
				var err error
				if inside, err = parsePort(args[1]); err != nil {
					return usageErrorf("port %q: write a number from 1 to 65535", args[1])
				}
			}
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				st, err := sb.Status(ctx)
				if err != nil {
					return err
				}
				if st.State != atoll.StateRunning {
					return atoll.E("open", args[0], atoll.ErrStopped, nil)
				}
				if inside == 0 {
					if inside, err = onlyPort(args[0], st.Spec.Ports); err != nil {
						return err
					}
				}
				return a.openPort(ctx, sb, inside, noBrowser)
			})
		},
	}
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the address")
	return cmd
}

// onlyPort returns the port of a sandbox that has one.
func onlyPort(name string, ports []atoll.Port) (int, error) {
	if len(ports) == 1 {
		return ports[0].Port, nil
	}
	if len(ports) == 0 {
		return 0, usageErrorf("sandbox %s names no port: write it like atoll open %[1]s 8080", name)
	}
	return 0, usageErrorf("sandbox %s names %d ports: write one, as in atoll open %[1]s %d", name, len(ports), ports[0].Port)
}

// openPort forwards a local port to the sandbox until ctx ends, and opens it in the browser.
func (a *app) openPort(ctx context.Context, sb atoll.Sandbox, inside int, noBrowser bool) error {
	f, err := a.listenLocally(ctx, "127.0.0.1", []forwarding{{inside, inside}})
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) { // ports below 1024 need privileges
		f, err = a.listenLocally(ctx, "127.0.0.1", []forwarding{{0, inside}})
	}
	if err != nil {
		return err
	}
	defer f.Close()
	f.serveSandbox(ctx, sb)
	address := "http://" + f.listeners[0].Addr().String() + "/"
	if _, err := fmt.Fprintln(a.stdout, address); err != nil {
		return err
	}
	if !noBrowser {
		browser.Stdout, browser.Stderr = io.Discard, io.Discard
		if err := browser.OpenURL(address); err != nil {
			a.printMessage("no browser can be opened here: %s; open the address yourself", err)
		}
	}
	a.printMessage("port %s of the sandbox is open until you press Ctrl-C", strconv.Itoa(inside))
	<-ctx.Done()
	return nil
}
