#include "textflag.h"

// func cloneAndRun(first, number, arg0, arg1 uint64) int64
TEXT ·cloneAndRun(SB),NOSPLIT,$0-40
	MOVQ	first+0(FP), R12
	MOVQ	number+8(FP), AX
	MOVQ	arg0+16(FP), DI
	MOVQ	arg1+24(FP), SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	SYSCALL
	TESTQ	AX, AX
	JZ	next
	MOVQ	AX, ret+32(FP)
	RET

	// The child executes the Call at R12. It never returns, and uses no stack.
next:
	MOVQ	0(R12), AX
	MOVQ	8(R12), DI
	MOVQ	16(R12), SI
	MOVQ	24(R12), DX
	MOVQ	64(R12), R10
	MOVQ	72(R12), R8
	MOVQ	80(R12), R9
	SYSCALL
	MOVQ	56(R12), BX
	MOVQ	AX, 0(BX)
	TESTQ	AX, AX
	JS	negative
	JZ	zero
	MOVQ	32(R12), R12
	JMP	next
zero:
	MOVQ	40(R12), R12
	JMP	next
negative:
	MOVQ	48(R12), R12
	JMP	next
