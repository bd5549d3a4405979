package atoll_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// Use any provider; that of package gvisor isolates.
func Example() {
	ctx := context.Background()
	p, err := mock.New(mock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(ctx, &atoll.Spec{Name: "web"})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Remove(ctx, atoll.RemoveVolumes())
	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"echo", "hello"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	// Output: hello
}

// A command that exits with a non-zero code is an *ExitError. Other failures are an *Error with a
// kind.
func ExampleRun() {
	ctx := context.Background()
	p, err := mock.New(mock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	var exit *atoll.ExitError
	err = atoll.Run(ctx, sb, &atoll.Command{Args: []string{"sh", "-c", "exit 3"}})
	if errors.As(err, &exit) {
		fmt.Println(exit.Exit)
	}
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		log.Fatal(err)
	}
	err = atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}})
	fmt.Println(errors.Is(err, atoll.ErrNotFound))
	// Output:
	// exited with code 3
	// true
}
