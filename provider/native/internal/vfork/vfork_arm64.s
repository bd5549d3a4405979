#include "textflag.h"

// func cloneAndRun(first, number, arg0, arg1 uint64) int64
TEXT ·cloneAndRun(SB),NOSPLIT,$0-40
	MOVD	first+0(FP), R19
	MOVD	number+8(FP), R8
	MOVD	arg0+16(FP), R0
	MOVD	arg1+24(FP), R1
	MOVD	ZR, R2
	MOVD	ZR, R3
	MOVD	ZR, R4
	SVC
	CBZ	R0, next
	MOVD	R0, ret+32(FP)
	RET

	// The child executes the Call at R19. It never returns, and uses no stack.
next:
	MOVD	0(R19), R8
	MOVD	8(R19), R0
	MOVD	16(R19), R1
	MOVD	24(R19), R2
	MOVD	64(R19), R3
	MOVD	72(R19), R4
	MOVD	80(R19), R5
	SVC
	MOVD	56(R19), R9
	MOVD	R0, 0(R9)
	CMP	$0, R0
	BMI	negative
	BEQ	zero
	MOVD	32(R19), R19
	B	next
zero:
	MOVD	40(R19), R19
	B	next
negative:
	MOVD	48(R19), R19
	B	next
