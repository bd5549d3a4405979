//go:build linux

// Command library runs one command in a sandbox, with Atoll as a library.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

func main() {
	if err := runCommand(context.Background(), filepath.Join(os.TempDir(), "atoll-library")); err != nil {
		log.Fatal(err)
	}
}

func runCommand(ctx context.Context, dir string) error {
	p, err := gvisor.New(gvisor.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Create(ctx, &atoll.Spec{Resources: atoll.Resources{Processes: 100}})
	if err != nil {
		return err
	}
	defer sb.Remove(context.WithoutCancel(ctx), atoll.RemoveVolumes())

	if err := atoll.WriteFile(ctx, sb, "answer.sh", []byte("echo $((6*7))\n"), 0o755); err != nil {
		return err
	}
	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"sh", "answer.sh"}})
	fmt.Printf("%s", out)
	return err
}
