package wire

import (
	"bytes"
	"encoding/json"

	"github.com/seed46cd37a8/atoll"
)

// The operations on an open file.
const (
	FileOpRead   = "read"
	FileOpWrite  = "write"
	FileOpStat   = "stat"
	FileOpChange = "change"
	FileOpSync   = "sync"
	FileOpClose  = "close"
)

const (
	// MaxFileData is the most data of one message about an open file.
	MaxFileData = 1 << 20
	// MaxFileMessage is the size of the largest message about an open file: the data, and a line
	// before it.
	MaxFileMessage = MaxFileData + 64<<10
	// MaxFileRequests is the number of requests to an open file that a client may have on their way: the
	// server reads so many, and answers pings, while it performs the first one.
	MaxFileRequests = 2
)

// A FileRequest is the first line of a message to an open file. The data of a write follows it.
type FileRequest struct {
	Op     string            `json:"op"`
	Offset int64             `json:"offset,omitempty"`
	Length int               `json:"length,omitempty"` // of a read
	Change *atoll.FileChange `json:"change,omitempty"`
}

// A FileReply is the first line of the answer. The data of a read follows it.
type FileReply struct {
	Error *Error    `json:"error,omitempty"` // why the change failed
	Count int       `json:"count,omitempty"` // bytes written, also before an error
	End   bool      `json:"end,omitempty"`   // a read has reached the end of the file
	Info  *FileInfo `json:"info,omitempty"`  // the file after the change
}

// EncodeFileMessage returns a message of a line of JSON and data.
func EncodeFileMessage(line any, data []byte) ([]byte, error) {
	head, err := json.Marshal(line)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(head)+1+len(data))
	b = append(append(b, head...), '\n')
	return append(b, data...), nil
}

// DecodeFileMessage reads a message into line, and returns its data.
func DecodeFileMessage(b []byte, line any) (data []byte, err error) {
	head, data, ok := bytes.Cut(b, []byte("\n"))
	if !ok {
		return nil, ProtocolErrorf("a message has no line")
	}
	if err := json.Unmarshal(head, line); err != nil {
		return nil, ProtocolErrorf("read the line of a message: %w", err)
	}
	return data, nil
}
