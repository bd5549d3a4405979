package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newPortForward(a *app) *cobra.Command {
	address := "127.0.0.1"
	cmd := &cobra.Command{
		Use:   "port-forward [flags] SANDBOX [LOCAL:]PORT...",
		Short: "Forward local TCP ports to ports inside a sandbox",
		Long: `Port-forward listens on local ports and forwards connections to loopback ports
inside the sandbox, until it is interrupted. Without LOCAL both ports have the same
number; a LOCAL of 0 means any free port. Each address is printed when it is ready.
The sandbox needs no network.`,
		Example: `  atoll port-forward web 8080:80
  atoll port-forward web 0:80`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completePorts,
		RunE: func(cmd *cobra.Command, args []string) error {
			ports, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				st, err := sb.Status(ctx)
				if err != nil {
					return err
				}
				if st.State != atoll.StateRunning && st.State != atoll.StatePaused {
					return atoll.E("port-forward", args[0], atoll.ErrStopped, nil)
				}
				return a.forwardPorts(ctx, sb, address, ports)
			})
		},
	}
	cmd.Flags().StringVar(&address, "address", address, "local `address` to listen on")
	return cmd
}

// A forwarding is a local port and a port inside the sandbox.
type forwarding struct{ local, inside int }

func parseForwards(args []string) ([]forwarding, error) {
	var all []forwarding
	for _, arg := range args {
		bad := usageErrorf("port %q: write it like 80, 8080:80 or 0:80", arg)
		local, inside, both := strings.Cut(arg, ":")
		if !both {
			inside = local
		}
		n, err := parsePort(inside)
		if err != nil {
			return nil, bad
		}
		l := n
		if both && local != "0" {
			if l, err = parsePort(local); err != nil {
				return nil, bad
			}
		} else if both {
			l = 0
		}
		all = append(all, forwarding{l, n})
	}
	return all, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return int(n), err
}

// forwardPorts forwards ports until ctx ends, and then returns nil.
func (a *app) forwardPorts(ctx context.Context, sb atoll.Sandbox, address string, ports []forwarding) error {
	f, err := a.listenLocally(ctx, address, ports)
	if err != nil {
		return err
	}
	defer f.Close()
	f.serveSandbox(ctx, sb)
	for i, l := range f.listeners {
		if _, err := fmt.Fprintf(a.stdout, "%s -> %d\n", l.Addr(), ports[i].inside); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// acceptConns forwards the connections of a listener until it is closed.
func (a *app) acceptConns(ctx context.Context, l net.Listener, sb atoll.Sandbox, port int) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		local, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				a.printMessage("%v", err)
			}
			return
		}
		conns.Go(func() {
			defer local.Close()
			inside, err := atoll.Dial(ctx, sb, port)
			if err != nil {
				if ctx.Err() == nil {
					a.printMessage("%v", err)
				}
				return
			}
			defer inside.Close()
			spliceConns(ctx, local, inside)
		})
	}
}

// spliceConns copies in both directions until both ends are closed, or ctx ends.
func spliceConns(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() {
		a.Close()
		b.Close()
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { oneWay(a, b) })
	both.Go(func() { oneWay(b, a) })
	both.Wait()
}

// oneWay copies until from ends, and then closes to for writing.
func oneWay(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	to.Close()
	from.Close()
}
