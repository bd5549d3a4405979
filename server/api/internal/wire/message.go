package wire

import (
	"encoding/json"
	"errors"

	"github.com/seed46cd37a8/atoll"
)

// The channels of a stream connection: the first byte of each binary message.
const (
	ChanStdin byte = iota
	ChanStdout
	ChanStderr
	Channels // the number of channels
)

// ChannelNames are the names of the channels in text messages.
var ChannelNames = [Channels]atoll.Stream{"stdin", atoll.Stdout, atoll.Stderr}

// ChannelOf returns the channel with the name s.
func ChannelOf(s atoll.Stream) (byte, bool) {
	for ch, name := range ChannelNames {
		if name == s {
			return byte(ch), true
		}
	}
	return 0, false
}

const (
	// Window is the largest number of bytes that may be sent on one channel before the receiver
	// has consumed them. It is part of the protocol.
	Window = 256 << 10
	// MaxData is the largest payload of a binary message.
	MaxData = 64 << 10
	// MaxMessage is the size of the largest message except for the first.
	MaxMessage = MaxData + 1
)

// A Message is a text message of a stream connection.
type Message struct {
	Type string `json:"type"` // kind of message

	Command  *atoll.Command `json:"command,omitempty"`   // exec
	Stdin    bool           `json:"stdin,omitempty"`     // exec, attach: the client will send stdin
	Stdout   bool           `json:"stdout,omitempty"`    // exec, attach: the client wants stdout
	Stderr   bool           `json:"stderr,omitempty"`    // exec, attach: the client wants stderr
	Joint    bool           `json:"joint,omitempty"`     // exec, attach: send stderr on the channel of stdout, in order
	From     *Offsets       `json:"from,omitempty"`      // attach: where to begin
	NoFollow bool           `json:"no_follow,omitempty"` // attach: end at the current end of the output
	Name     string         `json:"name,omitempty"`      // attach: the name of the attachment

	ID     string       `json:"id,omitempty"`     // started, attached: the id of the process
	Stream atoll.Stream `json:"stream,omitempty"` // window, close, gap
	Bytes  int64        `json:"bytes,omitempty"`  // window: how many more bytes may be sent
	Abort  bool         `json:"abort,omitempty"`  // close: of stdin, that it failed; of output, that the reader lost its connection and may reconnect

	Signal *atoll.Signal `json:"signal,omitempty"` // signal
	Size   *atoll.Size   `json:"size,omitempty"`   // resize
	Gap    *Gap          `json:"gap,omitempty"`    // gap
	Exit   *atoll.Exit   `json:"exit,omitempty"`   // exit
	Error  *Error        `json:"error,omitempty"`  // error, refused
}

// The types of message, with the side that sends them.
const (
	MsgExec   = "exec"   // client, first: start the command
	MsgAttach = "attach" // client, first: attach to the process
	MsgSignal = "signal" // client
	MsgResize = "resize" // client

	MsgStarted  = "started"  // server: the command runs
	MsgAttached = "attached" // server
	MsgGap      = "gap"      // server: bytes of the stream were dropped
	MsgExit     = "exit"     // server, last: the process ended, all its output was sent
	MsgEnd      = "end"      // server, last: all the requested output was sent
	MsgError    = "error"    // server, last: the request failed
	MsgRefused  = "refused"  // server: a signal or resize failed

	MsgWindow = "window" // both: more of the stream may be sent
	MsgClose  = "close"  // both: the sender ended the stream, or the receiver wants no more of it
)

// Offsets are the positions at which an attachment begins to read.
type Offsets struct {
	Stdout int64 `json:"stdout,omitempty"` // offset in stdout
	Stderr int64 `json:"stderr,omitempty"` // offset in stderr
}

// A Gap is a range of dropped bytes, [From, To).
type Gap struct {
	From int64 `json:"from"` // offset of the first byte
	To   int64 `json:"to"`   // offset behind the last byte
}

func parseMessage(b []byte, strict bool) (m Message, err error) {
	if strict {
		err = DecodeStrict(b, &m)
	} else {
		err = json.Unmarshal(b, &m)
	}
	if err == nil && m.Type == "" {
		err = errors.New("missing type")
	}
	if err != nil {
		return Message{}, ProtocolErrorf("invalid message: %w", err)
	}
	return m, nil
}
