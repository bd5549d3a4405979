// Package wire has the parts of the HTTP API that a server and its clients share: the bodies of
// requests and responses, the encoding of errors, headers, and the stream protocol.
//
// # Errors
//
// The body of an unsuccessful response, the data of an event "error" and the error of a stream
// message are an [Error]. [EncodeError] makes it, and [Error.ToError] turns it back into an
// *atoll.Error, for which errors.Is finds the same kinds.
//
// # The stream protocol
//
// A [StreamConn] carries the streams of one process over one WebSocket.
//
//	client                               server
//	exec | attach                   ->
//	                                <-   started | attached, or error
//	data on channel 0 (stdin)       ->
//	                                <-   data on channels 1 (stdout) and 2 (stderr)
//	window, close                  <->   window, close
//	signal, resize                  ->
//	                                <-   gap, refused
//	                                <-   exit | end | error, and a close frame
//
// Text messages are a [Message]. Binary messages are data: the first byte is the channel and up
// to MaxData bytes follow. The first message is text and may be as large as a JSON body; all
// others have at most MaxMessage bytes.
//
// Each channel begins with a credit of Window bytes. The sender must not send more than its
// credit. The receiver returns credit with "window" when its reader has consumed half a window.
// So the goroutine that reads the WebSocket never blocks on a slow reader.
//
// A sender ends a channel with "close", and with "abort" if its source failed. A receiver that
// wants no more data also sends "close", and with "abort" if its own reader lost its connection
// and may reconnect. A "gap" comes between the data before and after the dropped bytes. With
// "joint" the server sends stderr on the channel of stdout, in the order of writing.
//
// A violation of the protocol is a [ProtocolError]: the side that detects it closes the
// WebSocket with the status 1008 and the reason. A server that closes uses the status 1001
// after an "error" whose closing is "undone" or "detached". A client that closes the WebSocket
// with 1000 or 1001 leaves for good; after any other end it may attach again at its offsets.
//
// # Open files
//
// An open file has a WebSocket of its own. All messages are binary: a line of JSON, a [FileRequest]
// or a [FileReply], and then data. The server's first message is the reply to the opening. It
// answers requests in their order, and ends the WebSocket after the answer to "close".
package wire
