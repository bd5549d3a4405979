package vmtest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// starterVar is the environment variable with a starterOrder for a process of StartElsewhere.
const starterVar = "ATOLL_TEST_STARTER"

// A starterOrder holds the options of a driver, and the hardware of a machine.
type starterOrder[O any] struct {
	Options  O
	Hardware vm.Hardware
}

// Starter is for TestMain: in a process of StartElsewhere it starts the machine with a driver from
// open, prints that, and stays. In other processes it does nothing.
func Starter[O any, D vm.Driver](open func(O) D) {
	text := os.Getenv(starterVar)
	if text == "" {
		return
	}
	var o starterOrder[O]
	err := json.Unmarshal([]byte(text), &o)
	var m vm.Machine
	if err == nil {
		m, err = open(o.Options).New(&o.Hardware)
	}
	if err == nil {
		err = m.Start(context.Background())
	}
	fmt.Println("started:", err)
	time.Sleep(time.Hour)
}

// StartElsewhere starts a machine in a process of its own, which runs this test program, and lives
// until kill is called or the test ends.
func StartElsewhere[O any](t testing.TB, opts O, h vm.Hardware) (kill func()) {
	t.Helper()
	text, err := json.Marshal(starterOrder[O]{opts, h})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), starterVar+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed, or this is the second time
	}
	t.Cleanup(kill)
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil || said != "started: <nil>\n" {
		t.Fatalf("%q, %v", said, err)
	}
	return kill
}
