package testenv

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// DynamoDB needs DynamoDBServer, runs it on the loopback interface until the test ends, and returns
// its endpoint. The server stores data in memory and does not check signatures.
func DynamoDB(t testing.TB) string {
	t.Helper()
	Need(t, DynamoDBServer)
	node, program, err := dynalitePrograms()
	if err != nil {
		t.Fatal(err)
	}
	const tries = 3 // another program may take the port first
	for try := 1; ; try++ {
		endpoint, err := startDynalite(t, node, program)
		if err == nil {
			return endpoint
		}
		if try == tries {
			t.Fatalf("dynalite: %v", err)
		}
	}
}

// dynalitePrograms returns the paths of node and of dynalite, which runs on it.
func dynalitePrograms() (node, program string, err error) {
	bin, err := mcpPrograms()
	if err != nil {
		return "", "", err
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	program = filepath.Join(dir, "atoll-test", "dynamodb", "node_modules", "dynalite", "cli.js")
	_, err = os.Stat(program)
	return filepath.Join(bin, "node"), program, err
}

func startDynalite(t testing.TB, node, program string) (endpoint string, err error) {
	t.Helper()
	free, err := FreePort()
	if err != nil {
		return "", err
	}
	port := strconv.Itoa(free)
	address := net.JoinHostPort("127.0.0.1", port)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	const changes = "10" // milliseconds that changes of tables take
	cmd := exec.Command(node, program, "--host", "127.0.0.1", "--port", port, "--createTableMs", changes, "--deleteTableMs", changes)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		<-ended
	})
	logText := func() string {
		text, _ := os.ReadFile(log.Name())
		return string(text)
	}
	for deadline := time.Now().Add(Scale(30 * time.Second)); time.Now().Before(deadline); {
		select {
		case err := <-ended:
			ended <- err
			return "", fmt.Errorf("%v\n%s", err, logText())
		case <-time.After(10 * time.Millisecond):
		}
		if strings.Contains(logText(), "listening at") {
			return "http://" + address, nil
		}
	}
	return "", fmt.Errorf("does not answer at %s\n%s", address, logText())
}
