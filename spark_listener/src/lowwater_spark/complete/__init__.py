"""How far an output is complete, said by the output itself: no authority is asked."""
