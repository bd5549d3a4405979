package providertest

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// CheckInterpreters checks that the error for a program whose interpreter or loader is missing names it. A provider
// that does not start the programs itself may not know it, so this is not part of the suite.
func CheckInterpreters(t *testing.T, p atoll.Provider) {
	ctx := t.Context()
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
			t.Error(err)
		}
	}()
	for script, want := range map[string]string{
		"#!/usr/bin/no-such-interpreter -x\n": `interpreter "/usr/bin/no-such-interpreter" does not exist`,
		"#!/bin/sh\r\necho\r\n":               "Windows",
	} {
		if err := atoll.WriteFile(ctx, sb, "script", []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := sb.Exec(ctx, programCommand("./script"))
		wantKind(t, "Exec", err, atoll.ErrCommandNotFound)
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not mention %q", err, want)
		}
	}
}
